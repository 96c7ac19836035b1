"""The local programme: how much a client trains in one task, in local steps or in epochs.

When it asks for a fresh model in mid-task, and that it reports early, are commands of the schedule.
"""

from typing import Self

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from offbeat.core.types import Count
from offbeat.core.validation import STRICT


@dataclass(frozen=True, config=STRICT)
class Programme:
    """Q local steps, or E passes over the client's data: exactly one of the two."""

    steps: Count | None = None
    epochs: Count | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"give either steps or epochs, got steps={self.steps}, epochs={self.epochs}")
        return self

    def steps_for(self, steps_per_epoch: int) -> int:
        """The number of local steps of a client with so many steps an epoch."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * steps_per_epoch


def programme(steps: int | None, epochs: int | None, otherwise: int = 1) -> Programme:
    """The programme of a factory's `steps` and `epochs`; `otherwise` epochs when neither is given."""
    return Programme(steps, epochs) if steps or epochs else Programme(epochs=otherwise)
