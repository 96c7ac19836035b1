"""The step in place has the bits of the step in a fresh tensor, and the same memory, for every algorithm."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from msgspec.structs import replace as changed
from torch import Tensor

import offbeat as ob
from offbeat.algorithms.aggregators import MeanOfModels, Mixing, SumOfDeltas
from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.features import Feature
from offbeat.core.guard import Guard, UpdateGuard, norms_of
from offbeat.core.layout import Layout
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model, Tensors
from offbeat.core.schedule import Task
from tests.sim.sim_worlds import HARD, digits, make, normed

IN_PLACE = {
    "fedasync", "fedat", "fedavg", "fedavgm", "fedbuff", "fedcompass", "feddyn", "fednova", "fedprox", "moon",
    "port", "scaffold", "wireless", "fedadagrad", "fedadam", "fedyogi", "first_of",
    "fadas", "delay_adaptive", "ringmaster", "rennala", "malenia",
}  # fmt: skip
"""Those whose step takes no memory of its own; the others need the updates until it is made."""


def bits(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def copied(memory: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in memory.items()}


@dataclass(frozen=True)
class InPlace(Aggregator):
    """An aggregator whose steps are made twice: in a fresh tensor, and in place of a copy of the updates."""

    inner: Aggregator
    written_over: list[bool] = field(default_factory=list)

    @property
    def requires(self) -> frozenset[Feature]:
        return self.inner.requires

    @property
    def provides(self) -> frozenset[Feature]:
        return self.inner.provides

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        own = [changed(u, delta=u.delta.clone()) for u in updates]
        second = copied(memory)
        step = self.inner.step(updates, model, memory)
        in_place = self.inner.step_in_place(own, model, second)
        assert bits(in_place) == bits(step)
        assert {n: bits(t) for n, t in second.items()} == {n: bits(t) for n, t in memory.items()}
        self.written_over.append(in_place is own[0].delta)
        return step


@pytest.fixture(scope="module")
def learner() -> ob.TorchLearner:
    return digits(normed)


@pytest.mark.parametrize("name", [n for n in ob.ALGORITHMS if not make(n).aggregator.caches])
def test_every_algorithm_makes_the_same_step_in_place(name: str, learner: ob.TorchLearner) -> None:
    algorithm = make(name)
    both = InPlace(algorithm.aggregator)
    ob.simulate(
        replace(algorithm, aggregator=both), HARD, learner, seed=3, until=ob.Until(tasks=30), evaluate=None
    )
    assert both.written_over
    assert set(both.written_over) == {name in IN_PLACE}


@pytest.mark.parametrize("values", [5, 100_000, 2_000_000])
@pytest.mark.parametrize("aggregator", [MeanOfModels(), Mixing(0.6), SumOfDeltas(weights="equal", scale=0.7)])
def test_vectors_of_every_length_are_summed_in_place(values: int, aggregator: Aggregator) -> None:
    rng = torch.Generator().manual_seed(values)

    def model() -> Model:
        return Model(Layout.flat(values), torch.randn(values, generator=rng), torch.zeros(0))

    now, older = model(), model()
    for bases in ([now], [older], [now, older, now]):
        tasks = [Task(i, i, 0, 1, 0.0, samples=i + 1, share=0.5, staleness=i) for i in range(len(bases))]
        deltas = [torch.randn(values, generator=rng) for _ in bases]
        updates = [
            Update(task, base, delta, torch.zeros(0))
            for task, base, delta in zip(tasks, bases, deltas, strict=True)
        ]
        expected, others = aggregator.step(updates, now, {}), [delta.clone() for delta in deltas[1:]]
        assert expected is not deltas[0]
        found = aggregator.step_in_place(updates, now, {})
        assert found is deltas[0]
        assert bits(found) == bits(expected)
        assert all(map(torch.equal, deltas[1:], others))


def test_an_aggregator_of_ones_own_needs_no_step_in_place() -> None:
    @dataclass(frozen=True)
    class Own(Aggregator):
        def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
            return updates[0].delta * 0.5

    delta = torch.tensor([2.0])
    one = Model(Layout.flat(1), torch.zeros(1), torch.zeros(0))
    update = Update(Task(0, 0, 0, 1, 0.0), one, delta, torch.zeros(0))
    assert Own().step_in_place([update], one, {}).tolist() == [1.0]
    assert delta.tolist() == [2.0]


def test_the_guard_knows_how_far_updates_went_that_were_written_over() -> None:
    """A step that is no longer than its updates passes, whatever has been written over them."""
    rng = torch.Generator().manual_seed(0)
    model = Model(Layout.flat(1000), torch.zeros(1000), torch.zeros(0))

    def reasons(write_over: Callable[[Tensor], object]) -> list[str | None]:
        guard, found = UpdateGuard(Guard(), 2, model), list[str | None]()
        for version, size in enumerate([*[1e-3] * 20, 1e6], 1):
            delta = torch.randn(1000, generator=rng) * size
            own = Update(Task(version, version % 2, 0, 1, 0.0), model, delta, torch.zeros(0))
            own = changed(own, norms=norms_of(LocalResult(delta, own.integers), model.layout))
            step = delta.clone()
            write_over(delta)
            found.append(guard.check_step(step, model, version, [own]))
        return found

    assert reasons(Tensor.zero_) == reasons(Tensor.clone) == [None] * 21
