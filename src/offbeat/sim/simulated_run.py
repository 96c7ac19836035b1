"""A run that the simulator can start: a prepared run, and the clients of a world."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId
from offbeat.core.features import Feature
from offbeat.core.learner import ClientEvaluator, Learner, columns_of
from offbeat.core.limits import NEVER_ENDS, check_evaluated
from offbeat.core.privacy.privacy_options import rounded_up
from offbeat.core.validation import check_type
from offbeat.experiment import Experiment, PreparedRun
from offbeat.local.batches import steps_per_epoch
from offbeat.local.description import describe_learner, describe_training
from offbeat.local.torch_learner import TorchLearner
from offbeat.world.description import describe_world
from offbeat.world.population import Population
from offbeat.world.world import World

MOST_NAMES = 10_000
"""Clients up to which their names are recorded."""


@dataclass(frozen=True)
class SimulatedRun:
    """A run before it starts.

    Attributes:
        prepared: The run.
        world: The clients' side.
        population: The clients of the world.
    """

    prepared: PreparedRun
    world: World
    population: Population

    @classmethod
    def of(cls, experiment: Experiment, world: World) -> Self:
        """Prepare an experiment in a world. Raises `UsageError` where the two do not fit."""
        _check(experiment, world)
        learner = experiment.learner
        clients = world.population(learner.clients if learner is not None else None)
        prepared = experiment.prepare(clients)
        counted = range(clients) if world.equal_epochs else ()
        epochs = [max(1, prepared.learner.steps_per_epoch(client)) for client in counted]
        return cls(prepared, world, Population(world, experiment.seed, epochs))

    @property
    def experiment(self) -> Experiment:
        """The experiment that is run."""
        return self.prepared.experiment

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that is driven."""
        return self.prepared.algorithm

    @property
    def learner(self) -> Learner:
        """The learner."""
        return self.prepared.learner

    @property
    def device(self) -> str:
        """Where versions, updates and sums are: on a GPU, if the learner trains there.

        With privacy they are on the CPU, as sums are exact integers of NumPy; with mps too, for want of
        float64.
        """
        learner = self.learner
        if not isinstance(learner, TorchLearner) or self.prepared.release_plan is not None:
            return "cpu"
        return "cpu" if learner.training.device == "mps" else learner.training.device

    @cached_property
    def samples(self) -> Callable[[ClientId], int]:
        """samples(client): a client's number of training samples, as it reports it."""
        own, unit = self.learner.samples, self._samples_unit
        return own if unit == 1 else lambda client: rounded_up(own(client), unit)

    @cached_property
    def steps_per_epoch(self) -> Callable[[ClientId], int]:
        """steps_per_epoch(client): those of `samples(client)` samples, else the learner's own number."""
        batch_size: int | None = getattr(self.learner, "batch_size", None)
        if self._samples_unit == 1 or batch_size is None:
            return self.learner.steps_per_epoch
        drop_last = bool(getattr(self.learner, "drop_last", False))
        return lambda client: steps_per_epoch(self.samples(client), batch_size, drop_last)

    @cached_property
    def described(self) -> dict[str, Any]:
        """Entries about clients, data and training in the record of a run."""
        learner, told = self.learner, dict[str, Any](world=describe_world(self.world))
        if columns := columns_of(learner):
            told["columns"] = dict(columns)
        if not isinstance(learner, TorchLearner):
            return told | {"learner": None}
        described = asdict(describe_learner(learner, self.experiment.seed))
        return told | {
            "learner": described,
            "training": describe_training(learner.training),
            "data": learner.data.describe(),
        }

    @property
    def client_names(self) -> dict[ClientId, str]:
        """Names of the clients by number; empty where they have numbers only, or are too many to record."""
        names = self.learner.data.names if isinstance(self.learner, TorchLearner) else ()
        return dict(enumerate(names)) if len(names) <= MOST_NAMES else {}

    @property
    def _samples_unit(self) -> int:
        plan = self.prepared.release_plan
        return 1 if plan is None else plan.privacy.samples_unit


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


def _check(experiment: Experiment, world: World) -> None:
    check_type("world", world, World, "World(…), the speeds and links of the clients")
    algorithm, every = experiment.algorithm, experiment.evaluate
    if Feature.RADIO in algorithm.requires and world.channel is None:
        raise UsageError(f"{algorithm.name} needs a world with a channel: give world.channel")
    if experiment.until.never:
        raise UsageError(NEVER_ENDS)
    check_evaluated(experiment.until, every, True, "give evaluate seconds or versions")
    if every.at_clients:
        _check_held_out(experiment.learner, every.at)
