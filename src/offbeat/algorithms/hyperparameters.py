"""The options of a factory, read from its signature: names, defaults, ranges and meanings as text."""

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

_BOUNDS = {"Ge": "≥", "Gt": ">", "Le": "≤", "Lt": "<"}


@dataclass(frozen=True)
class HyperParameter:
    """One option of an algorithm: its name, default, allowed range and meaning, as text.

    An option within another one has its path for a name, such as `staleness.alpha`.
    """

    name: str
    default: str
    allowed: str
    meaning: str


def options_of(signature: inspect.Signature) -> Iterator[HyperParameter]:
    """The options of a factory in the order of its signature, each followed by those within it."""
    for parameter in signature.parameters.values():
        yield from _options(parameter.name, parameter.annotation, parameter.default)


def option_classes(annotation: Any) -> list[Any]:
    """The checked dataclasses that an option may be an object of."""
    kind, _ = split(annotation)
    return [c for c in (get_args(kind) or (kind,)) if hasattr(c, "__pydantic_fields__")]


def kind_of(option_class: Any) -> str | None:
    """The value of the key `kind` that selects this class; None for a class that needs no such key."""
    field = option_class.__pydantic_fields__.get("kind")
    return None if field is None else str(field.default)


def plain(annotation: Any) -> Any:
    """A type without its ranges, such as `float | None` for `Annotated[float, Field(ge=0)] | None`."""
    if get_origin(annotation) is Annotated:
        return plain(get_args(annotation)[0])
    if get_origin(annotation) in (UnionType, Union):
        return reduce(or_, map(plain, get_args(annotation)))
    return annotation


def _options(
    name: str, annotation: Any, default: Any, prefix: Sequence[str] = ()
) -> Iterator[HyperParameter]:
    kind, infos = split(annotation)
    classes = option_classes(annotation)
    meanings = [info.description for info in infos if info.description]
    meaning = ": ".join([*prefix, *meanings[-1:]])
    yield HyperParameter(name, _show(default), _allowed(kind, classes, infos), meaning)
    for option_class in classes:
        hints, tag = get_type_hints(option_class, include_extras=True), kind_of(option_class)
        own = default if type(default) is option_class else None
        for inner, field in option_class.__pydantic_fields__.items():
            if inner != "kind":
                value = getattr(own, inner, field.default)
                yield from _options(f"{name}.{inner}", hints[inner], value, [tag] if tag else [])


def split(annotation: Any) -> tuple[Any, list[FieldInfo]]:
    """A type without None and ranges, and the ranges and meanings, those of the outermost last."""
    infos: list[FieldInfo] = []
    while True:
        members = [member for member in get_args(annotation) if member is not NoneType]
        if get_origin(annotation) is Annotated:
            annotation, *extras = members
            infos = [*(extra for extra in extras if isinstance(extra, FieldInfo)), *infos]
        elif get_origin(annotation) in (UnionType, Union) and len(members) == 1:
            annotation = members[0]
        else:
            return annotation, infos


def _allowed(kind: Any, classes: list[Any], infos: list[FieldInfo]) -> str:
    """Types and ranges for people: without modules, and the values of a choice by themselves."""
    if kinds := [kind for c in classes if (kind := kind_of(c))]:
        return " or ".join(kinds)
    if classes:
        return "a mapping of the options below"
    if kind is inspect.Parameter.empty:
        return "anything"
    text = inspect.formatannotation(kind)
    text = re.sub(r"\b\w+(?:\.\w+)+\b", lambda name: name[0].split(".")[-1], text)
    text = re.sub(r"Literal\[([^]]*)\]", lambda words: words[1].replace("'", "").replace(", ", " or "), text)
    limits = [(type(bound).__name__, bound) for info in infos for bound in info.metadata]
    bounds = [f"{_BOUNDS[name]} {getattr(bound, name.lower())}" for name, bound in limits if name in _BOUNDS]
    return ", ".join([text, *bounds])


def _show(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if value is None:
        return "none"
    if not is_dataclass(value) or isinstance(value, type):
        return str(value)
    fields = asdict(value)
    if "kind" not in fields:
        return "as below"
    return f"{fields.pop('kind')}({', '.join(f'{k}={v}' for k, v in fields.items())})"
