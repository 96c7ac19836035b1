"""Who is there when: late joiners, leavers, periodic absence, and tasks that come to nothing."""

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from offbeat.core.types import NonNegative, Positive
from offbeat.core.validation import STRICT
from offbeat.world.laws import Law

Chance = Annotated[float, Field(ge=0, lt=1)]
Interval = tuple[NonNegative, Positive | None]


@dataclass(frozen=True, config=STRICT)
class Availability:
    """Who is there, and who brings a task to an end.

    `dropout` is the probability that a task comes to nothing, at a moment uniform over its duration: one
    for all clients, or a list of one each.
    `join` and `leave` are the times (seconds) at which a client comes and goes, per client (none: it
    is there from the start, it never goes). With `period`, a client that is there is away again and
    again: present for the first `present` share of each period, shifted by a random phase of its own.
    `intervals` lists instead, for each client, the times from which to which it is there (null: to the end).
    """

    dropout: Chance | list[Chance] = 0.0
    join: NonNegative | list[NonNegative] | Law | None = None
    leave: Positive | list[Positive] | Law | None = None
    period: Positive | None = None
    present: Annotated[float, Field(gt=0, le=1)] = 1.0
    intervals: list[list[Interval]] | None = None

    @model_validator(mode="after")
    def _used(self) -> Self:
        if self.present < 1 and self.period is None:
            raise ValueError(f"present = {self.present} is a share of period: give period, in seconds")
        return self

    @model_validator(mode="after")
    def _listed(self) -> Self:
        if self.intervals is None:
            return self
        if (self.join, self.leave, self.period) != (None, None, None):
            raise ValueError("intervals say when each client is there: leave out join, leave and period")
        for client, own in enumerate(self.intervals):
            times = [t for begin, end in own for t in (begin, float("inf") if end is None else end)]
            if any(a >= b for a, b in pairwise(times)):
                raise ValueError(f"intervals[{client}] = {own} must be of some length, apart and in order")
        return self

    @property
    def always(self) -> bool:
        """Is every client there from the start to the end?"""
        whole = self.join is None and self.leave is None and self.intervals is None
        return whole and (self.period is None or self.present == 1.0)
