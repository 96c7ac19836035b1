"""Availability of clients: late joiners, leavers, periodic absence, and tasks that are lost."""

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from offbeat.core.types import NUMBER, NonNegative, Positive, PositiveShare
from offbeat.core.validation import checked_dataclass
from offbeat.world.laws import Law

Probability = Annotated[float, Field(ge=0, lt=1), NUMBER]
Interval = tuple[NonNegative, Positive | None]


@checked_dataclass
class Availability:
    """Presence of the clients, and the probability that a task is lost.

    Attributes:
        dropout: Probability in [0, 1) that a task is lost, at a moment uniform over its duration. One number
            for all clients, or a list with one number per client.
        join: Time in seconds at which a client joins, per client. None means at the start.
        leave: Time in seconds at which a client leaves, per client. None means never.
        period: Length in seconds of a cycle of presence and absence. Each client has its own random phase.
            None means no cycle.
        present: Share in (0, 1] of each period, from its beginning, in which a client is present.
        intervals: For each client, its intervals of presence (from, until) in seconds, disjoint and in
            order. None for until means the end of the run. Replaces `join`, `leave` and `period`.
    """

    dropout: Probability | list[Probability] = 0.0
    join: NonNegative | list[NonNegative] | Law | None = None
    leave: Positive | list[Positive] | Law | None = None
    period: Positive | None = None
    present: PositiveShare = 1.0
    intervals: list[list[Interval]] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.present < 1 and self.period is None:
            raise ValueError(f"present = {self.present} is a share of period: give period, in seconds")
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
        """Whether every client is present from the start to the end."""
        whole = self.join is None and self.leave is None and self.intervals is None
        return whole and (self.period is None or self.present == 1.0)
