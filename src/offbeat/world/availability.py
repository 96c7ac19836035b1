"""Who is there when: late joiners, leavers, periodic absence, and tasks that come to nothing."""

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from offbeat.core.validation import CLOSED
from offbeat.world.laws import Law, NonNegative, Positive


@dataclass(frozen=True, config=CLOSED)
class Availability:
    """Who is there, and who brings a task to an end.

    `dropout` is the probability that a task comes to nothing, at a moment uniform over its duration.
    `join` and `leave` are the times (seconds) at which a client comes and goes, per client (none: it
    is there from the start, it never goes). With `period`, a client that is there is away again and
    again: present for the first `present` share of each period, shifted by a random phase of its own.
    """

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    join: NonNegative | list[NonNegative] | Law | None = None
    leave: Positive | list[Positive] | Law | None = None
    period: Positive | None = None
    present: Annotated[float, Field(gt=0, le=1)] = 1.0

    @model_validator(mode="after")
    def _used(self) -> Self:
        if self.present < 1 and self.period is None:
            raise ValueError(f"present = {self.present} is a share of period: give period, in seconds")
        return self
