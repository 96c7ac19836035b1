"""How FedCompass compares times that are computed in different ways.

An arrival at T_max and T_max itself are sums of different numbers: they mean the same time and differ by
rounding. Such times are one instant. The simulator feeds the arrivals of an instant before its timers
(`Schedule.resolution`), and no comparison here tells two times of an instant apart. A timer is set for T_max
itself, so a task that it starts begins at T_max and not later. Times are in seconds of the run's clock.
"""

from collections.abc import Iterable, Mapping

from offbeat.core.events import ClientId

RESOLUTION = 1e-11
"""Relative difference up to which two times are one instant: far above rounding, far below a local step."""


def is_after(time: float, other: float) -> bool:
    """Whether a time is after another one, and not the same instant."""
    return time > other * (1 + RESOLUTION)


def steps_until(end: float, now: float, seconds: float) -> int:
    """⌊(end − now) / seconds⌋, where steps that end at the instant `end` fit."""
    steps = round((end - now) / seconds)
    return steps - 1 if is_after(now + steps * seconds, end) else steps


def latest_time(time: float, now: float, others: Iterable[float]) -> float:
    """T_max of a new group.

    Args:
        time: T_max as it is computed.
        now: The time now.
        others: T_max of the groups whose timers are set.

    Returns:
        The time, or that of another timer of the same instant: then the one set first fires first.
    """
    same = (t for t in others if t >= now and not (is_after(t, time) or is_after(time, t)))
    return next(same, time)


def fastest_first(seconds: Mapping[ClientId, float], now: float) -> list[ClientId]:
    """Clients by the instant at which a step begun now would end, equal ones by their numbers.

    Args:
        seconds: Seconds per step by client.
        now: The time now.
    """
    ends: dict[ClientId, float] = {}
    end = now
    for client in sorted(seconds, key=seconds.__getitem__):
        end = now + seconds[client] if is_after(now + seconds[client], end) else end
        ends[client] = end
    return sorted(seconds, key=lambda client: (ends[client], client))
