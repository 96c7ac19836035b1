"""What a simulation's results follow from: an algorithm, a world and a learner that fit, under a seed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from offbeat.algorithms import recorded_name
from offbeat.algorithms.private import (
    check_buffers,
    check_client_metrics,
    complete_privacy,
    with_privacy,
    without_privacy,
)
from offbeat.core.algorithm import Algorithm, check_layout
from offbeat.core.buffers import Finalizer, finalizer
from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId
from offbeat.core.features import Feature
from offbeat.core.guard import Guard
from offbeat.core.learner import ClientEvaluator, Learner, NoTraining, metric_directions
from offbeat.core.limits import NEVER_ENDS, Every, Until, check_evaluated
from offbeat.core.model import Model
from offbeat.core.privacy import Privacy, rounded_up
from offbeat.core.releases import ReleasePlan
from offbeat.core.root import TrainRoot, train_root
from offbeat.core.schedule_rule import described_rule
from offbeat.local.batches import steps_per_epoch
from offbeat.runs.initial import Initial, start_from
from offbeat.world.population import Population
from offbeat.world.world import World


@dataclass(frozen=True)
class Experiment:
    """A run before it starts.

    Attributes:
        algorithm: The algorithm.
        population: The clients of the world.
        learner: Trains and evaluates.
        seed: The run's seed.
        until: The run's limits.
        every: How often the global model is evaluated.
        initial: The initial global model.
        complete: Makes of a version the model that is evaluated.
        guard: Options of the guard against absurd updates; None means there is none.
        train_root: Makes the server's own update of a version. None where the aggregator needs none.
        release_plan: What is fixed for the sums of a run with privacy. None means that there is none.
    """

    algorithm: Algorithm
    population: Population
    learner: Learner
    seed: int
    until: Until
    every: Every
    initial: Model
    complete: Finalizer
    guard: Guard | None
    train_root: TrainRoot | None
    release_plan: ReleasePlan | None = None

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        world: World,
        learner: Learner | None,
        seed: int,
        until: Until,
        evaluate: Every | None,
        initial: Initial | None = None,
        guard: Guard | None = Guard(),
        privacy: Privacy | None = None,
    ) -> Self:
        """Check that all fit; arguments as of `simulate`. Raises `UsageError` where they do not."""
        every = evaluate or Every()
        _check(algorithm, world, until, every)
        if every.at_clients:
            _check_held_out(learner, every.at)
        clients = world.population(learner.clients if learner else None)
        concurrency = algorithm.schedule.concurrency
        if concurrency is not None and concurrency > clients:
            raise UsageError(
                f"{algorithm.name}: {concurrency} clients cannot train at the same time, there are "
                f"{clients}; choose at most {clients}"
            )
        learner = learner or NoTraining(clients)
        first = start_from(learner.initial(seed), initial)
        complete = finalizer(algorithm.buffers, learner, first, seed)
        check_layout(algorithm, first.layout)
        plan = None
        if privacy is not None:
            check_client_metrics(privacy, until, every)
            check_buffers(algorithm, first.layout)
            privacy = complete_privacy(privacy, algorithm, clients)
            plan = ReleasePlan(privacy, first.layout.parameters, clients)
            algorithm = with_privacy(algorithm, privacy)
        root = train_root(algorithm.name, algorithm.aggregator.root_training, learner, seed)
        return cls(
            algorithm,
            Population(world, seed),
            learner,
            seed,
            until,
            every,
            first,
            complete,
            guard,
            root,
            plan,
        )

    @cached_property
    def samples(self) -> Callable[[ClientId], int]:
        """samples(client): a client's number of training samples, as it tells it."""
        own, unit = self.learner.samples, self._samples_unit
        return own if unit == 1 else lambda client: rounded_up(own(client), unit)

    @cached_property
    def steps_per_epoch(self) -> Callable[[ClientId], int]:
        """steps_per_epoch(client): those of that number; else what a learner without a batch size says."""
        batch_size: int | None = getattr(self.learner, "batch_size", None)
        if self._samples_unit == 1 or batch_size is None:
            return self.learner.steps_per_epoch
        drop_last = bool(getattr(self.learner, "drop_last", False))
        return lambda client: steps_per_epoch(self.samples(client), batch_size, drop_last)

    @property
    def _samples_unit(self) -> int:
        return 1 if self.release_plan is None else self.release_plan.privacy.samples_unit

    @property
    def described(self) -> dict[str, Any]:
        """The algorithm as a run's directory records it."""
        plain = without_privacy(self.algorithm)
        return {"name": recorded_name(plain), **plain.hyperparameters, **described_rule(plain)}

    @property
    def higher_is_better(self) -> Mapping[str, bool]:
        """Whether more is better of the learner's metrics, where the learner says so."""
        return metric_directions(self.learner)


def _check_held_out(learner: Learner | None, at: str) -> None:
    """Raises `UsageError` unless a client holds out samples on which it can evaluate a model."""
    if not isinstance(learner, ClientEvaluator):
        name = "a run without a learner" if learner is None else type(learner).__name__
        raise UsageError(
            f"evaluate.at = {at!r} is not allowed with {name}: give a learner with held_out(client) and "
            "evaluate_client(model, client, inputs), or choose server"
        )
    if not any(learner.held_out(client) for client in range(learner.clients)):
        raise UsageError(
            f"evaluate.at = {at!r} needs samples that clients hold out, and none does: give "
            "federate(…, validation=0.2), or choose server"
        )


def _check(algorithm: Algorithm, world: World, until: Until, every: Every) -> None:
    if not isinstance(algorithm, Algorithm):
        raise UsageError(
            f"a {type(algorithm).__name__} is not an Algorithm: call a factory, such as offbeat.fedavg()"
        )
    if Feature.RADIO in algorithm.requires and world.channel is None:
        raise UsageError(f"{algorithm.name} needs a world with a channel: give world.channel")
    if until.never:
        raise UsageError(NEVER_ENDS)
    check_evaluated(until, every, True, "give evaluate seconds or versions")
