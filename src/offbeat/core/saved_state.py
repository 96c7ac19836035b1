"""Plain data of a state machine, from which a run is restored without its journal.

A class that owns a part of the state has `save`, which gives a struct or plain data, and `restore` or `load`,
which takes it back. What is saved is a copy: no later event changes it.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from msgspec import Struct, convert, inspect

SCALARS = (bool, int, float, str, bytes, type(None))


def to_plain(value: Any) -> Any:
    """Dataclasses, structs and collections as mappings and lists; sets are sorted, mappings keep their order.

    Raises:
        TypeError: A value is of another type, or of a subclass of a plain one.
    """
    kind = type(value)
    if kind in SCALARS:
        return value
    if is_dataclass(kind):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(kind)}
    if isinstance(value, Struct):
        return {name: to_plain(getattr(value, name)) for name in kind.__struct_fields__}
    if isinstance(value, Mapping):
        return {_to_key(key): to_plain(own) for key, own in value.items()}
    if kind in (set, frozenset):
        return sorted(map(to_plain, value))
    if kind in (list, tuple):
        return [to_plain(own) for own in value]
    raise TypeError(f"a {kind.__name__} cannot be saved as plain data")


def _to_key(key: Any) -> Any:
    """A key as plain data: a tuple stays one."""
    return tuple(map(_to_key, key)) if type(key) is tuple else to_plain(key)


def state_type(schedule: type) -> Any:
    """The annotated type of a schedule's state: what its `initial` returns."""
    return get_type_hints(schedule.initial).get("return", Any)  # type: ignore[attr-defined]


def from_plain(saved: Any, schedule: type) -> Any:
    """A schedule's state from what `to_plain` gave. Raises `ValidationError` where it does not fit."""
    return convert(saved, state_type(schedule))


def describe_types(*types: Any) -> str:
    """The fields of types and their types, to compare with those of another version."""
    return repr(inspect.multi_type_info(types))
