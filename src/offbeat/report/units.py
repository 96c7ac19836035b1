"""Units and numbers as a reader wants to see them."""

from typing import NamedTuple


class Unit(NamedTuple):
    """A unit's short name and how many base units (seconds, bytes) it holds."""

    name: str
    size: float


def time_unit(longest: float) -> Unit:
    """Choose seconds, minutes, hours or days for times up to `longest` virtual seconds."""
    for unit in (Unit("days", 86400.0), Unit("h", 3600.0), Unit("min", 60.0)):
        if longest >= 3 * unit.size:
            return unit
    return Unit("s", 1.0)


def byte_unit(most: float) -> Unit:
    """Choose B, kB, MB, GB or TB (powers of 1000) for amounts up to `most` bytes."""
    for unit in (Unit("TB", 1e12), Unit("GB", 1e9), Unit("MB", 1e6), Unit("kB", 1e3)):
        if most >= 2 * unit.size:
            return unit
    return Unit("B", 1.0)


def duration_text(seconds: float) -> str:
    """Write a length of virtual time: "0.35 s", "12 min 00 s", "3 h 05 min", "2 d 04 h"."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def percent(share: float) -> str:
    """Write a share as "90 %" or "62.5 %"."""
    return f"{100 * share:.4g} %"


def seed_list(seeds: list[int]) -> str:
    """Write seeds briefly: "seed 0", "seeds 0-2", "seeds 0, 1, 5"."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    ordered = sorted(seeds)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"seeds {ordered[0]}-{ordered[-1]}"
    return "seeds " + ", ".join(map(str, ordered))
