"""How FedCompass compares times that are computed in different ways.

An arrival at T_max and T_max itself are sums of different numbers: they mean the same time and differ by
rounding. Under rule 2 such times are one instant. The simulator feeds the arrivals of an instant before its
timers (`Schedule.resolution`), and no comparison here tells two times of an instant apart. A timer is set for
T_max itself, so a task that it starts begins at T_max and not later.

Rule 1 is that of records without a number. Its timers come a relative 1e-12 after T_max; these delays add up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor
from typing import ClassVar, Protocol

from offbeat.core.events import ClientId

RESOLUTION = 1e-11
"""Relative difference up to which two times are one instant: far above rounding, far below a local step."""


def _is_after(time: float, other: float) -> bool:
    """Whether a time is after another one, and not the same instant."""
    return time > other * (1 + RESOLUTION)


class CompassTimes(Protocol):
    """Comparisons of times, in seconds of the run's clock."""

    resolution: ClassVar[float]

    def is_late(self, now: float, latest: float) -> bool:
        """Whether an arrival now is after T_max, `latest`."""

    def is_before(self, now: float, expected: float) -> bool:
        """Whether now is before T_a, `expected`."""

    def steps_until(self, end: float, now: float, seconds: float) -> int:
        """⌊(end − now) / seconds⌋, the number of steps of `seconds` each that fit."""

    def latest(self, time: float, now: float, others: Iterable[float]) -> float:
        """T_max of a new group, computed as `time`; `others` are those of the groups whose timers are set."""

    def timer(self, latest: float) -> float:
        """When the timer of a group fires, given its T_max."""

    def fastest_first(self, seconds: Mapping[ClientId, float], now: float) -> list[ClientId]:
        """Clients by their seconds per step, equally fast ones by their numbers."""


@dataclass(frozen=True)
class Instants:
    """Rule 2: times within a relative `RESOLUTION` of each other are the same."""

    resolution: ClassVar[float] = RESOLUTION

    def is_late(self, now: float, latest: float) -> bool:
        """Whether now is after the instant T_max."""
        return _is_after(now, latest)

    def is_before(self, now: float, expected: float) -> bool:
        """Whether now is before the instant T_a."""
        return _is_after(expected, now)

    def steps_until(self, end: float, now: float, seconds: float) -> int:
        """⌊(end − now) / seconds⌋, where steps that end at the instant `end` fit."""
        steps = round((end - now) / seconds)
        return steps - 1 if _is_after(now + steps * seconds, end) else steps

    def latest(self, time: float, now: float, others: Iterable[float]) -> float:
        """The time, or that of another timer of the same instant: then the one set first fires first."""
        same = (t for t in others if t >= now and not (_is_after(t, time) or _is_after(time, t)))
        return next(same, time)

    def timer(self, latest: float) -> float:
        """T_max itself."""
        return latest

    def fastest_first(self, seconds: Mapping[ClientId, float], now: float) -> list[ClientId]:
        """Clients by the instant at which a step begun now would end, equal ones by their numbers."""
        ends: dict[ClientId, float] = {}
        end = now
        for client in sorted(seconds, key=seconds.__getitem__):
            end = now + seconds[client] if _is_after(now + seconds[client], end) else end
            ends[client] = end
        return sorted(seconds, key=lambda client: (ends[client], client))


@dataclass(frozen=True)
class DelayedTimers:
    """Rule 1: numbers are compared as they are rounded, and timers fire a relative 1e-12 after T_max."""

    resolution: ClassVar[float] = 0.0

    def is_late(self, now: float, latest: float) -> bool:
        """Whether now is after T_max by more than a relative 1e-9."""
        return now > latest * (1 + 1e-9)

    def is_before(self, now: float, expected: float) -> bool:
        """Whether now is before T_a."""
        return now < expected

    def steps_until(self, end: float, now: float, seconds: float) -> int:
        """⌊x⌋ of x = (end − now) / seconds; an x within a relative 1e-9 of an integer is that integer."""
        x = (end - now) / seconds
        nearest = round(x)
        return nearest if abs(x - nearest) <= 1e-9 * max(1.0, abs(x)) else floor(x)

    def latest(self, time: float, now: float, others: Iterable[float]) -> float:
        """The time."""
        return time

    def timer(self, latest: float) -> float:
        """After an arrival at T_max, yet as many steps fit as at T_max."""
        return latest * (1 + 1e-12)

    def fastest_first(self, seconds: Mapping[ClientId, float], now: float) -> list[ClientId]:
        """Clients by their seconds per step, then by their numbers."""
        return sorted(seconds, key=lambda client: (seconds[client], client))


RULES: dict[int, CompassTimes] = {1: DelayedTimers(), 2: Instants()}
"""The comparisons by the number of the schedule's rule."""
