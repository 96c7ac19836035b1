"""The local programme: length of a task, in local steps or in epochs.

Requests for a fresh model in mid-task and early reports are commands of the schedule.
"""

from typing import Self

from pydantic import model_validator

from offbeat.core.types import Count
from offbeat.core.validation import checked_dataclass


@checked_dataclass
class Programme:
    """The length of a task: exactly one of the two.

    Attributes:
        steps: Q, local steps, at least 1.
        epochs: E, passes over the client's data, at least 1.
    """

    steps: Count | None = None
    epochs: Count | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"give either steps or epochs, got steps={self.steps}, epochs={self.epochs}")
        return self

    def steps_for(self, steps_per_epoch: int) -> int:
        """Local steps of a client with `steps_per_epoch` local steps an epoch."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * steps_per_epoch


def programme(steps: int | None, epochs: int | None, otherwise: int = 1) -> Programme:
    """The programme of a factory's `steps` and `epochs`; `otherwise` epochs when neither is given."""
    return Programme(steps, epochs) if steps or epochs else Programme(epochs=otherwise)
