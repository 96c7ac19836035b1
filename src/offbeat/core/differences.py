"""The first difference between two records of options, in one phrase."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_LONGEST = 100  # characters of a value in a message
_MISSING = object()


def first_difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first option that differs: "training.lr was 0.1, now it is 0.2"; None where none does.

    Names of functions that cannot be imported come last: they may differ where the functions do not.

    Args:
        then: What was recorded, as JSON values.
        now: What is given now, as values that JSON can hold.
    """
    unsure: str | None = None
    for name, old, new in _differences(then, json.loads(json.dumps(now)), ""):
        if old is _MISSING:
            return f"{name} was not given, now it is {_short(new)}"
        if new is _MISSING:
            return f"{name} was {_short(old)}, now it is not given"
        told = f"{name} was {_short(old)}, now it is {_short(new)}"
        if not (_is_place(old) and _is_place(new)):
            return told
        unsure = unsure or (
            f"{told}: these are places of functions that cannot be imported; give a function that has a name "
            "at the top of a file"
        )
    return unsure


def _differences(
    then: Mapping[str, Any], now: Mapping[str, Any], path: str
) -> Iterator[tuple[str, Any, Any]]:
    """Each dotted key that differs, with both values."""
    for key in {**then, **now}:
        old, new, name = then.get(key, _MISSING), now.get(key, _MISSING), f"{path}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{name}.")
        elif old is _MISSING or new is _MISSING or old != new:
            yield name, old, new


def _is_place(value: Any) -> bool:
    """Whether this is what `named.name_of` makes of an object without a name of its own."""
    return isinstance(value, str) and value.startswith(":")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
