"""Plans of a server that deviates: each number and each type is refused in one line, or is harmless."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.net.client.first_batch import TrialError
from offbeat.net.client.join import make_context
from offbeat.net.client.site import Site
from offbeat.net.run_spec import read_run_spec
from tests.hostile import JSON_VALUES
from tests.net.deviating_server import DATA, HELPERS, plan_of

NOISE = ob.Noise(releases=20, bands=4, budget=ob.Budget(epsilon=4.0))
PLANS = {
    "plain": plan_of(None),
    "private": plan_of(ob.Privacy(clip=0.5, least=2, samples_unit=5, noise=NOISE)),
    "secure": plan_of(ob.Privacy(clip=0.5, secure=ob.Secure(helpers=HELPERS))),
    "composed": plan_of(
        None,
        ob.compose(
            ob.fedbuff(4, steps=2),
            aggregator=ob.robust.Buckets(buckets=3),
            clip=1.0,
            objective=ob.moon(steps=2),
        ),
    ),
}


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all values in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def with_value(plan: dict[str, Any], path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    changed = deepcopy(plan)
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


def whole(plan: dict[str, Any]) -> list[tuple[str | int, ...]]:
    found = []
    for path in places(plan):
        value: Any = plan
        for key in path:
            value = value[key]
        if type(value) is int:
            found.append(path)
    return found


@pytest.mark.parametrize("kind", PLANS)
def test_every_whole_number_of_a_plan_has_a_limit(kind: str) -> None:
    for path in whole(PLANS[kind]):
        with pytest.raises(UsageError, match=r"server's|is not allowed|than") as refused:
            read_run_spec(with_value(PLANS[kind], path, 10**30))
        assert "cannot be carried out" not in str(refused.value), path


def refusal(plan: dict[str, Any]) -> str:
    """Why a plan is refused; empty where it is not."""
    try:
        read_run_spec(plan)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_of_other_types_is_refused_in_one_line(kind: str) -> None:
    """What a helper reads; training options and layout are the same in all plans."""
    base = PLANS[kind]
    for path in places(base):
        if kind != "plain" and path[0] in ("training", "layout", "model"):
            continue
        for value in JSON_VALUES:
            said = refusal(with_value(base, path, value))
            assert "\n" not in said
            assert "cannot be carried out" not in said, (path, value)


@pytest.mark.parametrize("name", [None, 3, [], {}, ["fedavg"], {"name": "fedavg"}, "x" * 501])
@pytest.mark.parametrize("plain", [True, False])
def test_an_algorithm_needs_a_name(name: Any, plain: bool) -> None:
    plan = {**PLANS["plain"], "algorithm": {"name": name}, "plain": plain}
    with pytest.raises(UsageError, match=r"algorithm = .* is not allowed: its name must be a text"):
        read_run_spec(plan)


@pytest.mark.parametrize("option", ["accumulate", "batch_size", "evaluation_batch_size"])
def test_the_work_of_a_plan_follows_from_the_samples(option: str) -> None:
    """A part of a batch for each number that a server can think of would take all memory."""
    plan = with_value(PLANS["plain"], ("training", option), 2**53)
    make_context(Site.of(DATA))(plan, 0)


def test_a_failure_of_the_trial_is_one_line_and_the_server_is_not_told_its_text() -> None:
    plan = plan_of(None, ob.fedprox(mu=0.1, steps=2))
    plan["algorithm"]["mu"] = 1e308
    with pytest.raises(TrialError, match="RuntimeError: value cannot be converted") as refused:
        make_context(Site.of(DATA))(plan, 0)
    assert "RuntimeError" not in refused.value.told


@pytest.mark.parametrize("option", ["loss", "step", "evaluate"])
def test_names_are_printable(option: str) -> None:
    with pytest.raises(UsageError, match=rf"{option} = '\\x1b\[2J\\n' is not allowed: it must be printable"):
        read_run_spec({**PLANS["plain"], option: "\x1b[2J\n"})


def test_what_nobody_has_foreseen_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise TypeError("unhashable\ntype")

    monkeypatch.setattr("offbeat.net.run_spec._checked", fails)
    with pytest.raises(UsageError, match=r"^the server's run specification .*: TypeError: unhashable type$"):
        read_run_spec(PLANS["plain"])
