"""The server's own training on trusted data of its own, its root data, with which updates are compared.

It follows from the version of the model, the run's seed and the number of steps alone. So a simulation, a
server on a network and either of them after an interruption have the same Δ_s; a replay without tensors needs
none.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from msgspec import Struct
from torch import Tensor

from offbeat.core.errors import UsageError
from offbeat.core.events import Version
from offbeat.core.model import Model

ROOT_UPDATE = "root update"
"""Name, in an aggregator's memory, of the server's own update Δ_s, float32 [values]."""


class RootTraining(Struct, frozen=True):
    """How an aggregator wants the server to train.

    Attributes:
        steps: Local steps, at least 1.
        every: Versions from one training to the next: Δ_s is of a version less than `every` versions old.
    """

    steps: int
    every: int


@runtime_checkable
class RootLearner(Protocol):
    """A learner that may have root data."""

    @property
    def root_samples(self) -> int:
        """Number of samples of the root data; 0 means that there are none."""

    def train_root(self, model: Model, version: Version, seed: int, steps: int) -> Tensor:
        """Train on the root data; the result depends on the arguments alone, in any process.

        Args:
            model: The global model to train from.
            version: Its version.
            seed: The run's seed.
            steps: Local steps.

        Returns:
            Δ_s over the flat values, float32 [values].
        """


TrainRoot = Callable[[Model, Version], Tensor]
"""Δ_s of a version of the global model."""


def train_root(name: str, wanted: RootTraining | None, learner: object, seed: int) -> TrainRoot | None:
    """The server's training as a driver calls it.

    Args:
        name: The algorithm's name.
        wanted: What its aggregator asks for. None means nothing.
        learner: The driver's learner.
        seed: The run's seed.

    Raises:
        UsageError: A training is asked for, and the learner has no root data.
    """
    if wanted is None:
        return None
    if not isinstance(learner, RootLearner) or not learner.root_samples:
        raise UsageError(
            f"{name} needs a server with trusted data of its own, and this one has none: give root = samples "
            "in data (a recipe) or to federate(…), or choose an aggregator without, such as centered_clip"
        )
    return lambda model, version: learner.train_root(model, version, seed, wanted.steps)
