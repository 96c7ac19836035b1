"""A finished run and a recorded one answer to the same names in the same way."""

import inspect
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.runs.record import RunRecord
from offbeat.sim.result import MemoryRecorder, Run, RunRows

FAMILY = Run, RunRecord, MemoryRecorder, RunRows


def public(kind: type) -> dict[str, object]:
    """Names with what they are: the parameters of a method, None for data (a field or a property)."""
    fields = getattr(kind, "__dataclass_fields__", {})
    names = [*fields, *(n for n in vars(kind) if not n.startswith("_"))]
    return {n: _parameters(vars(kind).get(n)) for n in names}


def _parameters(found: object) -> tuple[str, ...] | None:
    return tuple(inspect.signature(found).parameters)[1:] if inspect.isfunction(found) else None


@pytest.mark.parametrize("one", FAMILY)
@pytest.mark.parametrize("other", FAMILY)
def test_a_name_is_data_or_a_method_in_all_of_them(one: type, other: type) -> None:
    """What takes arguments in one may take more in another, after those."""
    first, second = public(one), public(other)
    for name in first.keys() & second.keys():
        assert (first[name] is None) == (second[name] is None), name
        short, long = sorted((first[name] or (), second[name] or ()), key=len)
        assert long[: len(short)] == short, name


def test_what_both_must_have() -> None:
    shared = public(Run).keys() & public(RunRecord).keys()
    assert shared == {"journal", "metrics", "rows", "evaluations", "client_metrics", "entries", "stop_reason",
                      "path", "label", "seed", "clients", "client_names", "duration", "higher_is_better",
                      "summary", "diverged"}  # fmt: skip


def test_they_say_the_same(tmp_path: Path) -> None:
    learner = ob.NoTraining(3, parameters=2)
    until = ob.Until(tasks=20)
    held = ob.simulate(ob.fedbuff(2, steps=1), ob.World([1.0, 2.0, 3.0]), learner, until=until)
    run = ob.simulate(
        ob.fedbuff(2, steps=1), ob.World([1.0, 2.0, 3.0]), learner, until=until, out=tmp_path / "run"
    )
    record = ob.read_run(tmp_path / "run")
    for other in (held, record):
        assert other.journal == run.journal
        assert other.metrics == run.metrics
        for name in ("stop_reason", "label", "seed", "clients", "duration", "higher_is_better", "summary"):
            assert getattr(other, name) == getattr(run, name), name
        assert other.evaluations() == run.evaluations()
        assert other.entries("arrived") == run.entries("arrived") != []
        for kind in (None, "event", "command"):
            assert list(other.rows(kind)) == list(run.rows(kind)) != []
    assert record.path == run.path
