"""Options without an effect: an algorithm is the same without them, and with other values of them.

Such an option would be dropped without a word: `server_lr` of FedFa's mean of models, or `size` of FedBuff
where only its aggregator is taken.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import UsageError

Path = tuple[str, ...]
Options = Mapping[str, Any]


def option_without_effect(
    made: Algorithm, make: Callable[[Options], Algorithm], given: Options, paths: Iterable[Path]
) -> Path | None:
    """The first option that changes no part of an algorithm; None where each changes one.

    Only numbers and truth values are tried, those within an option too: other values cannot be guessed.

    Args:
        made: The algorithm.
        make: Makes an algorithm of some options.
        given: The options with which it was made.
        paths: The options to try: the keys that lead to each.
    """
    parts = _parts(made)
    for path in paths:
        others = [
            _changed(given, (*path, *inner), _other(value)) for inner, value in _numbers(_value(given, path))
        ]
        tried = [_changed(given, path), *others]
        if others and not any(_differs(make, parts, options) for options in tried):
            return path
    return None


def numbers_in(options: Options) -> list[Path]:
    """The paths of the numbers and truth values in some options, at any depth."""
    return [path for path, _ in _numbers(options)]


def _numbers(value: Any, before: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The numbers in a value, which may be one itself, each with its path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(inner, (*before, key))
    elif isinstance(value, int | float):
        yield before, value


def _other(value: float) -> float:
    """Another value in place of a number or truth value."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value / 2 or 0.5


def _differs(make: Callable[[Options], Algorithm], parts: tuple[Any, ...], options: Options) -> bool:
    """Whether an algorithm is another one with these options, or cannot be made or compared."""
    try:
        return bool(_parts(make(options)) != parts)
    except (UsageError, ValidationError, TypeError, ValueError, RuntimeError):
        return True


def _parts(algorithm: Algorithm) -> tuple[Any, ...]:
    """What an algorithm does: all but its name and its options."""
    return (
        algorithm.schedule, algorithm.aggregator, algorithm.objective, algorithm.server_steps,
        algorithm.buffers, algorithm.codec,
    )  # fmt: skip


def _value(options: Options, path: Path) -> Any:
    first, *rest = path
    return _value(options[first], tuple(rest)) if rest else options[first]


def _changed(options: Options, path: Path, *other: Any) -> dict[str, Any]:
    """The options with another value at a path, or without the option."""
    first, *rest = path
    changed = {key: value for key, value in options.items() if key != first}
    if rest:
        changed[first] = _changed(options[first], tuple(rest), *other)
    elif other:
        changed[first] = other[0]
    return changed
