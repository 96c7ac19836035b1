"""A version that is not finite, or an absurd step away, is never published: the run goes on without it."""

from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

import offbeat as ob
from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.algorithm import ServerStep
from offbeat.core.commands import Aggregate
from offbeat.core.events import Skipped
from offbeat.core.global_model import GlobalModel
from offbeat.core.guard import Guard
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model, Tensors
from offbeat.core.schedule import Task
from offbeat.sim.replay import replay
from offbeat.testing import check_journal
from tests.options import EVERY_FEATURE
from tests.sampling import diagonal, mostly_thorough
from tests.sim.sim_worlds import CALM, digits, make, outcome

LAYOUT = ob.Layout.flat(2)


@dataclass(frozen=True)
class Spoils(Aggregator):
    """An aggregator that spoils some of another one's steps."""

    inner: Aggregator
    factor: float
    at: tuple[int, ...]
    count: list[int] = field(default_factory=list)

    @property
    def requires(self):  # type: ignore[no-untyped-def]
        return self.inner.requires

    @property
    def provides(self):  # type: ignore[no-untyped-def]
        return self.inner.provides

    @property
    def caches(self) -> bool:
        return self.inner.caches

    def step(self, updates: list[Update], model: Model, memory: Tensors) -> Tensor:  # type: ignore[override]
        return self.spoilt(self.inner.step(updates, model, memory))

    def cached_step(self, updates, model, memory, cache):  # type: ignore[no-untyped-def]
        return self.spoilt(self.inner.cached_step(updates, model, memory, cache))

    def spoilt(self, step: Tensor) -> Tensor:
        self.count.append(0)
        return step * self.factor if len(self.count) in self.at else step


def spoilt(name: str, factor: float, at: tuple[int, ...] = (8,)) -> ob.Algorithm:
    algorithm = make(name)
    return replace(algorithm, aggregator=Spoils(algorithm.aggregator, factor, at))


MANY = ("malenia", "rennala")
"""Algorithms with many updates in a version."""
FACTORS = (float("nan"), 1e38, 1e9)


@pytest.mark.parametrize(
    ("name", "factor"),
    mostly_thorough(product(ob.ALGORITHMS, FACTORS), diagonal(sorted(EVERY_FEATURE), FACTORS)),
)
def test_no_algorithm_publishes_it(name: str, factor: float, tmp_path: Path) -> None:
    at = (12,) if name == "fedfa" else (8,)  # whose first steps are zero
    until = ob.Until(tasks=60 if name not in MANY else 600)
    run = ob.simulate(spoilt(name, factor, at), CALM, digits(), until=until, out=tmp_path)
    (skipped,) = run.entries("skipped")
    assert skipped["version"] in at
    reasons = (
        "the norm of its step is not finite",
        "times the usual one, more than 90",
        "the most before most clients have delivered",  # where a client is slow
    )
    assert any(reason in str(skipped["reason"]) for reason in reasons)
    assert bool(torch.isfinite(run.model.values).all())
    assert run.summary.versions > at[0]
    record = ob.read_run(tmp_path)
    check_journal(list(record.rows()))
    assert replay(record, make(name)).difference is None


def test_a_run_with_a_skipped_version_is_resumed(tmp_path: Path) -> None:
    """Before and after the checkpoint of an interruption."""

    class Interrupted(ob.TorchLearner):
        def train(self, base, task, *rest):  # type: ignore[no-untyped-def]
            if task.task == 45:
                raise KeyboardInterrupt
            return super().train(base, task, *rest)

    plain, until = digits(), ob.Until(tasks=70)
    whole = ob.simulate(spoilt("fedadam", float("nan"), (4, 9)), CALM, plain, until=until)
    first = Interrupted(plain.module, plain.data, plain.training)
    with pytest.raises(KeyboardInterrupt):
        ob.simulate(
            spoilt("fedadam", float("nan"), (4, 9)), CALM, first,
            until=until, out=tmp_path, checkpoint_seconds=0,
        )  # fmt: skip
    checkpoint = ob.read_run(tmp_path).checkpoint()
    assert checkpoint is not None
    rest = tuple(version - checkpoint.version for version in (4, 9))
    again = ob.resume(tmp_path, spoilt("fedadam", float("nan"), rest), CALM, plain, until=until)
    assert len(whole.entries("skipped")) == 2
    assert outcome(again) == outcome(whole)


def update(task: int, *delta: float, shared: float | None = None) -> LocalResult:
    values = torch.tensor(delta)
    given = None if shared is None else torch.full((2,), shared)
    return LocalResult(values, torch.zeros(0, dtype=torch.int64), shared=given)


def arrive(tensors: GlobalModel, result: LocalResult, number: int) -> None:
    base = tensors.version
    task = Task(number, number % 3, base, 1, 0.0, staleness=0, samples=1, share=1 / 3, population=3)
    tensors.dispatch(number)
    tensors.arrive(task, result)


def aggregate(tensors: GlobalModel, number: int, *results: LocalResult) -> None:
    numbers = [10 * number + k for k in range(len(results))]
    for k, result in zip(numbers, results, strict=True):
        arrive(tensors, result, k)
    tensors.aggregate(Aggregate(tuple(numbers), version=number))


def guarded(algorithm: ob.Algorithm) -> GlobalModel:
    tensors = GlobalModel(algorithm, Model.empty(LAYOUT))
    tensors.set_guard(Guard(), 3)
    return tensors


def test_the_memories_are_as_before() -> None:
    """Those of a server step whose memory overflows while the step it gives is as usual."""
    tensors = guarded(
        replace(ob.fedadam(steps=1), server_steps=(Grows(), ob.fedadam(steps=1).server_steps[0]))
    )
    for version in (1, 2, 3):
        aggregate(tensors, version, update(0, 0.1, 0.2), update(1, 0.2, 0.1))
    before = {name: tensor.clone() for name, tensor in tensors.step_memories[1].items()}
    model = tensors.model
    aggregate(tensors, 4, update(0, 0.1, 0.2), update(1, 0.2, 0.1))
    assert tensors.skipped == [Skipped(4, "the memory of its aggregator or server steps is not finite")]
    assert tensors.model is model
    assert tensors.version == 4
    after = tensors.step_memories[1]
    assert before.keys() == after.keys() != set()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert float(tensors.step_memories[0]["size"]) == pytest.approx(1e30)


@dataclass(frozen=True)
class Grows(ServerStep):
    """Its memory grows by 10¹⁰ at each step."""

    def transform(self, step: Tensor, memory: Tensors) -> Tensor:
        memory["size"] = memory.get("size", torch.ones(())) * 1e10
        return step


def test_an_absurd_sum_does_not_reach_the_moments() -> None:
    """Adam's step would be as usual, and its second moment too large for what follows."""
    algorithm = ob.fedadam(steps=1)
    tensors = guarded(replace(algorithm, aggregator=Spoils(algorithm.aggregator, 1e6, (7,))))
    for version in range(1, 8):
        aggregate(tensors, version, update(0, 0.1, 0.2), update(1, 0.2, 0.1))
    assert [skipped.version for skipped in tensors.skipped] == [7]
    assert float(tensors.step_memories[0]["v"].max()) < 1


def test_a_memory_that_was_written_to_begins_anew() -> None:
    class Writes(Aggregator):
        def step(self, updates, model, memory):  # type: ignore[no-untyped-def]
            total = memory.setdefault("total", torch.zeros(2)).add_(updates[0].delta)
            return total.clone()

    tensors = guarded(replace(ob.fedbuff(1, steps=1), aggregator=Writes()))
    aggregate(tensors, 1, update(0, 1.0, 0.0))
    aggregate(tensors, 2, update(0, float("inf"), 0.0))
    assert [skipped.version for skipped in tensors.skipped] == [2]
    assert tensors.memory == {}
    aggregate(tensors, 3, update(0, 1.0, 2.0))
    assert tensors.model.values.tolist() == [2.0, 2.0]


def test_the_shared_vector_is_checked() -> None:
    tensors = guarded(ob.scaffold(steps=1))
    aggregate(tensors, 1, update(0, 0.1, 0.2, shared=3e38), update(1, 0.1, 0.2, shared=3e38))
    assert not tensors.skipped
    for version in (2, 3):
        aggregate(tensors, version, *(update(k, 0.1, 0.2, shared=3e38) for k in range(3)))
    assert [skipped.reason for skipped in tensors.skipped] == ["its values are not finite"] * 2
    assert bool(torch.isfinite(tensors.model.shared).all())


def test_a_finite_sum_of_finite_updates_that_overflows() -> None:
    tensors = guarded(ob.fedbuff(2, steps=1, server_lr=2.0))
    aggregate(tensors, 1, update(0, 3e38, 0.0), update(1, 3e38, 0.0))
    assert [skipped.version for skipped in tensors.skipped] == [1]
    assert tensors.model.values.tolist() == [0.0, 0.0]


def test_a_large_group_of_a_sum_is_not_absurd() -> None:
    """FedCompass adds up shares of its groups: a hundred updates go a hundred times as far as one."""
    algorithm = ob.fedcompass(1, 1)
    tensors = guarded(replace(algorithm, aggregator=Spoils(algorithm.aggregator, 1e4, (10,))))
    for version in range(1, 9):
        aggregate(tensors, version, update(0, 1.0, 0.0))
    aggregate(tensors, 9, *(update(k, 1.0, 0.0) for k in range(100)))
    assert not tensors.skipped
    aggregate(tensors, 10, update(0, 1.0, 0.0))
    assert [skipped.version for skipped in tensors.skipped] == [10]


def test_a_step_within_the_models_own_size_is_not_absurd() -> None:
    """FedAT: a slow tier goes as far at once as the model has gone since the tier's last round."""
    algorithm = ob.fedbuff(1, steps=1)
    tensors = guarded(replace(algorithm, aggregator=Spoils(algorithm.aggregator, 1e3, (10,))))
    tensors.model = Model(LAYOUT, torch.tensor([100.0, 0.0]), tensors.model.integers)
    for version in range(1, 9):
        aggregate(tensors, version, update(0, 0.01, 0.0))
    aggregate(tensors, 9, update(0, -150.0, 0.0))
    assert not tensors.skipped
    aggregate(tensors, 10, update(0, 0.15, 0.0))
    assert [skipped.version for skipped in tensors.skipped] == [10]


def test_without_a_guard_nothing_is_skipped() -> None:
    tensors = guarded(ob.fedbuff(2, steps=1, server_lr=2.0))
    tensors.guard = None
    aggregate(tensors, 1, update(0, 3e38, 0.0), update(1, 3e38, 0.0))
    assert not tensors.skipped
    assert not bool(torch.isfinite(tensors.model.values).all())
