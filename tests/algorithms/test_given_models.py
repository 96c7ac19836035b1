"""No part writes to a model it is given, whatever its dtype: tasks and updates share versions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch
from msgspec.structs import replace as changed
from torch import Tensor

import offbeat as ob
from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.algorithm import ServerStep
from offbeat.core.client_cache import ClientCache
from offbeat.core.features import Feature
from offbeat.core.learner import NO_INPUTS, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import Objective
from tests.sampling import thorough
from tests.sim.sim_worlds import HARD, Wrapped, digits, make, normed


@contextmanager
def unchanged(*models: Model) -> Iterator[None]:
    """These models are the same bits afterwards."""
    vectors = [vector for m in models for vector in (m.values, m.integers, m.shared)]
    before = [vector.clone() for vector in vectors]
    yield
    assert all(torch.equal(vector, kept) for vector, kept in zip(vectors, before, strict=True))


@dataclass(frozen=True)
class Watched(Aggregator):
    """An algorithm's aggregator and server steps, called with models of `dtype` that must stay."""

    aggregator: Aggregator
    server_steps: tuple[ServerStep, ...]
    dtype: torch.dtype
    calls: list[int] = field(default_factory=list)

    @property
    def requires(self) -> frozenset[Feature]:
        return self.aggregator.requires

    @property
    def provides(self) -> frozenset[Feature]:
        return self.aggregator.provides

    @property
    def caches(self) -> bool:
        return self.aggregator.caches

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        return self._watched(self.aggregator.step, updates, model, memory)

    def cached_step(
        self, updates: Sequence[Update], model: Model, memory: Tensors, cache: ClientCache
    ) -> Tensor:
        step = partial(self.aggregator.cached_step, cache=cache)
        return self._watched(step, updates, model, memory)

    def _watched(
        self, compute: Callable[..., Tensor], updates: Sequence[Update], model: Model, memory: Tensors
    ) -> Tensor:
        made: dict[int, Model] = {}

        def cast(given: Model) -> Model:  # an update of the current version has the model itself for its base
            return made.setdefault(
                id(given), Model(given.layout, given.values.to(self.dtype), given.integers, given.shared)
            )

        now = cast(model)
        given = [
            changed(u, base=cast(u.base), delta=u.delta.to(self.dtype), fresh=u.fresh and cast(u.fresh))
            for u in updates
        ]
        self.calls.append(len(updates))
        with unchanged(*made.values()):
            step = compute(given, now, memory)
            for number, part in enumerate(self.server_steps):
                own = {k: v for k, v in memory.items() if k.startswith(f"{number} ")}
                remembered = {k.removeprefix(f"{number} "): v for k, v in own.items()}
                step = part.transform(step, remembered)
                memory.update({f"{number} {k}": v for k, v in remembered.items()})
        assert step.dtype is self.dtype
        return step.to(model.values.dtype)


class Guarded(Wrapped):
    """A learner whose tasks leave the models they are given as they are."""

    merged = 0

    def train(
        self, base: Model, task: LocalTask, objective: Objective, inputs: TaskInputs = NO_INPUTS
    ) -> LocalResult:
        self.merged += inputs.fresh is not None
        with unchanged(base, *([inputs.fresh] if inputs.fresh else [])):
            return self.learner.train(base, task, objective, inputs)


@pytest.fixture(scope="module")
def learner() -> ob.TorchLearner:
    return digits(normed)


@pytest.mark.parametrize("dtype", [torch.float64, *thorough(torch.float32)])
@pytest.mark.parametrize("name", ob.ALGORITHMS)
def test_aggregation_and_training_leave_models_as_they_are(
    name: str, dtype: torch.dtype, learner: ob.TorchLearner
) -> None:
    algorithm, guarded = make(name), Guarded(learner)
    watched = Watched(algorithm.aggregator, algorithm.server_steps, dtype)
    algorithm = replace(algorithm, aggregator=watched, server_steps=())
    ob.simulate(algorithm, HARD, guarded, seed=3, until=ob.Until(tasks=30), evaluate=None)
    assert sum(watched.calls) >= 10
    assert (guarded.merged > 0) == (name in ("fedasmu", "fedssmu"))
