"""One clear line out of a validation error."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

import offbeat as ob
from offbeat.core.validation import did_you_mean, format_error
from offbeat.net import ServerOptions
from offbeat.recipes.load import check

RECIPE = {"clients": 2, "algorithm": {"name": "fedavg"}, "until": {"versions": 1}}


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    rate: Annotated[float, Field(gt=0)] = 1.0
    kind: Literal["a", "b"] = "a"


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: Inner = Inner()
    size: Annotated[int, Field(ge=1)]
    many: list[int] = []

    @model_validator(mode="after")
    def _together(self) -> "Outer":
        if self.size == 13:
            raise ValueError("size must not be 13")
        return self


def message(**values: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Outer(**values)
    text = format_error(caught.value, Outer.model_fields)
    assert "\n" not in text
    return text


def test_a_value_out_of_range():
    assert message(size=0) == "size = 0 is not allowed: should be greater than or equal to 1"


def test_a_value_deep_inside():
    text = message(size=1, inner={"rate": -2.0})
    assert text == "inner.rate = -2.0 is not allowed: should be greater than 0"
    assert message(size=1, many=[1, "x"]).startswith("many.1 = 'x' is not allowed: should be a valid integer")


def test_a_missing_value():
    assert message() == "size is missing"


def test_an_unknown_key():
    assert message(size=1, sise=2) == 'unknown key sise; did you mean "size"?'
    assert message(size=1, zzz=2) == "unknown key zzz; known: inner, many, size"


def test_a_choice_names_what_there_is():
    text = message(size=1, inner={"kind": "c"})
    assert text.startswith("inner.kind = 'c' is not allowed: should be ")
    assert "'a' or 'b'" in text


def test_a_rule_of_our_own():
    assert "size must not be 13" in message(size=13)
    assert "Value error" not in message(size=13)


def test_a_long_value_is_cut():
    text = message(size="x" * 500)
    assert len(text) < 200
    assert "..." in text


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("fedbuf", '; did you mean "fedbuff"?'),
        ("FedAvg", '; did you mean "fedavg"?'),
        ("xyz", "; known: fedavg, fedbuff"),
        ("", "; known: fedavg, fedbuff"),
    ],
)
def test_did_you_mean(word, hint):
    assert did_you_mean(word, ["fedbuff", "fedavg"]) == hint


def test_a_checked_dataclass_says_in_one_line_what_is_wrong() -> None:
    """By a call, from Python; within something else pydantic says where it is."""
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: ob.Training(optimizer="Adan"), "Training: optimizer = 'Adan' is not allowed: it is unknown"),
        (lambda: ob.Training(batchsize=3), 'Training: unknown key batchsize; did you mean "batch_size"?'),  # type: ignore[call-arg]
        (lambda: ob.Until(versions=0), "Until: versions = 0 is not allowed: should be greater than or equal"),
        (lambda: replace(ob.Every(), at="home"), "Every: at = 'home' is not allowed"),
        (lambda: ServerOptions(lease=0.0), "ServerOptions: lease = 0.0 is not allowed"),
        (lambda: ob.World(1.0, jitter=-1), "World: jitter = -1 is not allowed"),
    ]
    for make, says in wrong:
        with pytest.raises(ob.UsageError) as caught:
            make()
        assert str(caught.value).startswith(says)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValidationError, match=r"until\.versions"):
        create_model("Holder", until=ob.Until).model_validate({"until": {"versions": 0}})


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: ob.Training(lr=True), "Training: lr = True"),
        (lambda: ob.Training(momentum=False), "Training: momentum = False"),
        (lambda: ob.Until(versions=True), "Until: versions = True"),
        (lambda: ob.fedavg(steps=True), "fedavg: steps = True"),
        (lambda: ob.fedbuff(size=True), "fedbuff: size = True"),
        (lambda: ob.fedasync(staleness={"kind": "polynomial", "a": True}), "staleness.a = True"),
        (lambda: check({**RECIPE, "clients": True}, "recipe"), "recipe: clients = True"),
        (lambda: check({**RECIPE, "seed": False}, "recipe"), "recipe: seed = False"),
        (lambda: check({**RECIPE, "training": {"lr": True}}, "recipe"), "recipe: training.lr = True"),
    ],
)
def test_true_and_false_are_no_numbers(make: Callable[[], object], option: str) -> None:
    """YAML reads `yes` and `on` as true."""
    with pytest.raises(ob.UsageError) as caught:
        make()
    assert f"{option} is not allowed: should be a number" in str(caught.value)
