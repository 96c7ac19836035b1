"""The first difference between two records of options, in one phrase."""

import json
from collections.abc import Mapping
from typing import Any

_LONGEST = 100  # characters of a value in a message


def first_difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first option that differs: "training.lr was 0.1, now it is 0.2"; None where none does.

    Args:
        then: What was recorded, as JSON values.
        now: What is given now, as values that JSON can hold.
    """
    return _difference(then, json.loads(json.dumps(now)), "")


def _difference(then: Mapping[str, Any], now: Mapping[str, Any], path: str) -> str | None:
    for key in {**then, **now}:
        old, new, name = then.get(key), now.get(key), f"{path}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found = _difference(old, new, f"{name}.")
            if found is not None:
                return found
        elif key not in now:
            return f"{name} was {_short(old)}, now it is not given"
        elif key not in then:
            return f"{name} was not given, now it is {_short(new)}"
        elif old != new:
            return f"{name} was {_short(old)}, now it is {_short(new)}"
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
