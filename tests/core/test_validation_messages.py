"""One clear line out of a validation error."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from offbeat.core.validation import did_you_mean, format_error


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
