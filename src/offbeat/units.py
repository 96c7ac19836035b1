"""Units and numbers as a reader wants to see them."""

from math import floor, log10
from typing import NamedTuple

# Relative to a number, a smaller spread is rounding.
_EXACT = 1e-9


class Unit(NamedTuple):
    """A unit's short name and how many base units (seconds, bytes) it holds."""

    name: str
    size: float


def time_unit(longest: float) -> Unit:
    """Choose seconds, minutes, hours or days for times up to `longest` seconds."""
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


def size_text(count: int) -> str:
    """Write a number of bytes: "740 B", "13.4 kB", "2,310.0 MB"."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def duration_text(seconds: float) -> str:
    """Write a length of time: "0.35 s", "12 min", "12 min 05 s", "3 h 05 min", "2 d 04 h", "3 days"."""
    if seconds < 120:
        return f"{round(seconds, 2):.3g} s"
    whole = round(seconds)
    if whole < 7200:
        return _two_units(whole // 60, "min", whole % 60, "s")
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return _two_units(minutes // 60, "h", minutes % 60, "min")
    hours = round(seconds / 3600)
    return _two_units(hours // 24, "d" if hours % 24 else "days", hours % 24, "h")


def _two_units(large: int, unit: str, small: int, smaller: str) -> str:
    return f"{large} {unit} {small:02d} {smaller}" if small else f"{large} {unit}"


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


def number_text(value: float, spread: float | None = None, *, sign: bool = False) -> str:
    """Write a number with no more digits than its spread allows.

    The number is rounded where its spread is: 51.2487 with 0.2012 is "51.25", with 0.4 "51.2", with 7 "51".

    Args:
        value: The number.
        spread: Its standard deviation, or half the width of its confidence interval. None or 0 means that it
            is not known, and the number gets four significant digits.
        sign: Whether a number gets its sign, one that is rounded to 0 too.
    """
    places = decimals(spread) if spread and spread > abs(value) * _EXACT else _digits(value, 4)
    # Adding −0.0 keeps the sign of a zero, adding 0.0 removes it.
    shown = round(value, places) + (-0.0 if sign else 0.0)
    return f"{shown:{'+' if sign else ''}.{max(0, places)}f}"


def plain_text(value: float, significant: int) -> str:
    """Write a number with that many significant digits, and without an exponent."""
    shown = float(f"{value:.{significant}g}")
    return f"{shown:.{_digits(shown, significant)}f}"


def decimals(spread: float) -> int:
    """Decimal places that a spread above 0 allows; below 0 for tens, hundreds, …

    It gets two significant digits if its first three are 100 to 354, else one (Particle Data Group, Review of
    Particle Physics, section 5.3 of the introduction).
    """
    digits, _, exponent = f"{spread:.2e}".partition("e")
    return -int(exponent) + (float(digits) < 3.545)


def mean_text(mean: float, std: float | None) -> str:
    """Write a mean and its standard deviation, "51.2 ± 0.2"; without a deviation the mean alone."""
    if std is None:
        return number_text(mean)
    places = decimals(std) if std > abs(mean) * _EXACT else 0
    return f"{number_text(mean, std)} ± {round(std, places):.{max(0, places)}f}"


def _digits(value: float, significant: int) -> int:
    """Decimal places of `significant` digits, without zeros at the end."""
    if not value:
        return 0
    places = significant - 1 - floor(log10(abs(value)))
    digits = f"{round(value, places):.{max(0, places)}f}".rpartition(".")[2].rstrip("0")
    return len(digits) if places > 0 else max(places, 0)
