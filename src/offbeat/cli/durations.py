"""Lengths of time as a person types them, such as 90d."""

import re

from offbeat.core.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,9})([smhd])", re.ASCII)
_LONGEST = 100 * 365 * 86400
NEVER = "never"


def seconds_of(option: str, text: str) -> int:
    """The seconds of a length of time, such as 30m or 90d. Raises `UsageError` that names the option."""
    found = _DURATION.fullmatch(text)
    seconds = 0 if found is None else int(found[1]) * _UNITS[found[2]]
    if not 0 < seconds <= _LONGEST:
        raise UsageError(
            f"{option} {text[:40]} is not allowed: give a whole number and its unit (s, m, h or d), such as "
            "90d, at most 100 years"
        )
    return seconds


def life_of(option: str, text: str) -> int:
    """The seconds of a life; 0 for "never". Raises as `seconds_of` does."""
    return 0 if text == NEVER else seconds_of(option, text)
