"""Limits of a run, and the intervals of its evaluations."""

from pydantic.dataclasses import dataclass

from offbeat.core.types import Count, Positive, PositiveShare
from offbeat.core.validation import STRICT


@dataclass(frozen=True, config=STRICT)
class Until:
    """The limits of a run: it stops at whichever is reached first.

    Attributes:
        seconds: Seconds of the run's clock, above 0: virtual in a simulation, counted from the run's
            beginning on a network. None means no limit, here and below.
        versions: Versions of the global model, at least 1.
        tasks: Updates that have arrived, at least 1.
        accuracy: Accuracy on the test data, in (0, 1]; needs evaluations.
    """

    seconds: Positive | None = None
    versions: Count | None = None
    tasks: Count | None = None
    accuracy: PositiveShare | None = None

    @property
    def never(self) -> bool:
        """Whether there is no limit at all."""
        return (self.seconds, self.versions, self.tasks, self.accuracy) == (None, None, None, None)

    def reached(self, version: int, tasks: int) -> str | None:
        """Reason to stop at this version, after `tasks` tasks; None means that the run continues."""
        if self.versions is not None and version >= self.versions:
            return f"reached {self.versions} versions"
        if self.tasks is not None and tasks >= self.tasks:
            return f"reached {self.tasks} client tasks"
        return None

    def reached_accuracy(self, accuracy: float | None) -> str | None:
        """Reason to stop after an evaluation; None means that the run continues."""
        if self.accuracy is None or accuracy is None or accuracy < self.accuracy:
            return None
        return f"reached accuracy {self.accuracy:g}"

    @property
    def out_of_time(self) -> str:
        """Reason to stop when `seconds` have passed."""
        return f"reached {self.seconds:g} seconds"


@dataclass(frozen=True, config=STRICT)
class Every:
    """Intervals of the evaluations of the global model.

    With neither argument it is not evaluated at all; otherwise also at the start and at the end. Evaluating
    draws nothing from the run's random streams and changes nothing in it.

    Attributes:
        seconds: Seconds of the run's clock between two evaluations, above 0.
        versions: Versions between two evaluations, at least 1.
    """

    seconds: Positive | None = None
    versions: Count | None = None

    @property
    def never(self) -> bool:
        """Whether nothing is evaluated."""
        return self.seconds is None and self.versions is None

    def after(self, version: int) -> bool:
        """Whether this new version is evaluated."""
        return self.versions is not None and version % self.versions == 0
