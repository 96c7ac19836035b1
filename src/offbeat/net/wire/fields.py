"""Checks of single values that a peer sent: each is returned as it is used, or is a violation."""

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""What a site may be called."""
REASON, RUN, METRICS, METRIC, LABELS, DEPTH = 1000, 200, 100, 100, 100_000, 32


class ProtocolError(Exception):
    """The peer broke the protocol; the text says how, `kind` is a word to count by."""

    def __init__(self, reason: str, kind: str = "message") -> None:
        super().__init__(reason)
        self.kind = kind


def is_name(name: str) -> bool:
    """Whether a site may be called so."""
    return NAME.fullmatch(name) is not None


def count(name: str, value: int, most: int = (1 << 63) - 1) -> int:
    """A number from 0 to `most`."""
    if not 0 <= value <= most:
        raise ProtocolError(f"{name} = {value}: it must be from 0 to {most}")
    return value


def finite(name: str, value: float) -> float:
    """A number that is not infinite or NaN."""
    if not isfinite(value):
        raise ProtocolError(f"{name} = {value}: it must be finite")
    return value


def not_negative(name: str, value: float) -> float:
    """A finite number of 0 or more."""
    if finite(name, value) < 0:
        raise ProtocolError(f"{name} = {value}: it must not be negative")
    return value


def text(name: str, value: str, most: int) -> str:
    """A text of at most so many characters."""
    if len(value) > most:
        raise ProtocolError(f"{name} has {len(value)} characters: it may have {most}")
    return value


def shortened(reason: str) -> str:
    """A reason of our own, cut to what the peer accepts; what is no text to UTF-8 becomes "?"."""
    cut = reason if len(reason) <= REASON else reason[: REASON - 1] + "…"
    return cut.encode("utf-8", "replace").decode()


def metrics(values: Mapping[str, float]) -> dict[str, float]:
    """Named numbers, not too many; whether they are finite is for whoever uses them to ask."""
    if len(values) > METRICS:
        raise ProtocolError(f"{len(values)} metrics: there may be {METRICS}")
    return {text("a metric's name", k, METRIC): v for k, v in sorted(values.items())}


def json_object(name: str, value: str) -> dict[str, Any]:
    """A JSON object of finite numbers, nested at most `DEPTH` deep."""
    try:
        parsed = json.loads(value, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{name} is not JSON: {type(error).__name__}") from None
    if not isinstance(parsed, dict):
        raise ProtocolError(f"{name} is not a JSON object")
    level: list[Any] = [parsed]
    for _ in range(DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return parsed
    raise ProtocolError(f"{name} is nested deeper than {DEPTH}")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, float):
        finite("a number in the plan", value)
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _refuse(word: str) -> None:
    raise ValueError(word)
