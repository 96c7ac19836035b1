"""Checked options: one line for a validation error, with the option, its value and what is allowed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields
from difflib import get_close_matches
from functools import partial, wraps
from types import UnionType
from typing import Any, TypeVar, cast, dataclass_transform, overload

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from offbeat.core.errors import UsageError

T = TypeVar("T")

MAPPING_EXPECTED = frozenset(("dict_type", "dataclass_type", "model_type", "model_attributes_type"))
"""Types of pydantic's errors that say that a mapping is expected."""

UNKNOWN_KEY = frozenset(("extra_forbidden", "unexpected_keyword_argument"))
"""Types of pydantic's errors that say that a key is unknown."""
_LIST_EXPECTED = frozenset(("tuple_type", "list_type"))
# Kinds of values that may have been meant as the only one of a list.
_ALONE = (str, int, float)


class OptionError(UsageError):
    """An option of a checked dataclass that is not allowed; its `__context__` is pydantic's error."""


@overload
def checked_dataclass(cls: type[T]) -> type[T]: ...
@overload
def checked_dataclass(*, kw_only: bool) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(Field, field))
def checked_dataclass(cls: type[T] | None = None, *, kw_only: bool = False) -> Any:
    """Make a class a frozen dataclass of checked options.

    Values are validated, and an unknown option is an error. Made by a call it raises `UsageError`; within
    something else, such as a recipe, pydantic's `ValidationError`, which says where in it.

    Args:
        cls: The class.
        kw_only: Whether its options have no order: they can be given by name only.
    """
    if cls is None:
        return partial(_checked_dataclass, kw_only=kw_only)
    return _checked_dataclass(cls, kw_only)


def _checked_dataclass(cls: type[T], kw_only: bool) -> type[T]:
    made: Any = dataclass(cls, frozen=True, kw_only=kw_only, config=ConfigDict(extra="forbid"))
    init: Callable[..., None] = made.__init__

    @wraps(init)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except ValidationError as error:
            names = [each.name for each in fields(made)]
            raise OptionError(f"{made.__name__}: {format_error(error, names, names)}") from None

    made.__init__ = make
    found: type[T] = made
    return found


def check_type(option: str, value: object, kinds: type | UnionType, wanted: str) -> None:
    """Check the kind of an argument of a function; those of a checked dataclass are checked there.

    Args:
        option: Name of the argument.
        value: Its value.
        kinds: The class that it must be an instance of, or several: A | B.
        wanted: What is allowed, for the error.

    Raises:
        UsageError: It is an instance of none of them.
    """
    if not isinstance(value, kinds):
        raise UsageError(f"{option} = {value!r:.60} is not allowed: give {wanted}")


def validated(kind: type[T], document: Mapping[str, Any], what: str) -> T:
    """Make a checked dataclass of a file's or an option's keys and values.

    Args:
        kind: The dataclass.
        document: Value by key.
        what: Where the document is from, for the error: such as `--policy site.yaml`.

    Raises:
        UsageError: A key is unknown, or a value is not allowed.
    """
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        known = [each.name for each in fields(cast(Any, kind))]
        raise UsageError(f"{what}: {format_error(error, known)}") from None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint such as `; did you mean "fedbuff"?`, or the list of known names."""
    names = sorted(known)
    if not names:
        return "; there is none"
    close = get_close_matches(word, names, n=1, cutoff=0.65)
    return f'; did you mean "{close[0]}"?' if close else f"; known: {', '.join(names)}"


def format_error(
    error: ValidationError,
    options: Iterable[str] = (),
    arguments: Sequence[str] = (),
    document: Mapping[str, Any] | None = None,
) -> str:
    """One line for the most relevant problem of a validation error.

    Args:
        error: The error of a checked dataclass, model or function.
        options: Names of all options, to suggest one for an unknown key.
        arguments: Names of the arguments that may have been passed by position.
        document: What was validated, for the path of the key as it is written there. None means that the path
            may contain the kind of a section, as in `staleness.polynomial.a`.
    """
    problem = most_relevant(error)
    if document is not None:
        is_missing = problem["type"] in ("missing", "missing_argument")
        problem["loc"] = as_written(problem["loc"], document, is_missing=is_missing)
    first, *inner = problem["loc"] or ("",)
    if isinstance(first, int) and first < len(arguments):
        problem["loc"] = (arguments[first], *inner)
    written = document is not None
    path = ".".join(str(part) for part in problem["loc"] if written or _is_name(part))
    kind = problem["type"]
    if kind in UNKNOWN_KEY:
        names = list(options)
        last = str(problem["loc"][-1])
        if not written and not _is_name(problem["loc"][-1]):
            # The path leaves out a key that is no identifier, such as "batch-size".
            path = f"{path}.{last}" if path else last
        return f"unknown key {path}{did_you_mean(last, names) if names else ''}"
    if kind in ("missing", "missing_argument"):
        return f"{path} is missing"
    if kind == "union_tag_not_found":
        return f"{path}.{_tag_key(problem)} is missing"
    if kind == "union_tag_invalid":
        tag, tags = problem["ctx"]["tag"], problem["ctx"]["expected_tags"]
        hint = did_you_mean(tag, (t.strip(" '") for t in tags.split(",")))
        return f"{path}.{_tag_key(problem)} = {tag!r} is unknown{hint}"
    value = " ".join(repr(problem["input"]).split())
    shown = value if len(value) <= 60 else value[:57] + "..."
    message = problem["msg"].removeprefix("Value error, ").replace("Input should", "should")
    message = message.replace(" after validation", "")
    if kind in MAPPING_EXPECTED:
        # Pydantic names the Python class here, which a file's author does not know.
        message = "should be a mapping"
    if kind in _LIST_EXPECTED:
        message = "should be a list" + (
            f", such as [{shown}]" if isinstance(problem["input"], _ALONE) else ""
        )
    if kind == "value_error" and not path:
        # The message is about several options together and names them.
        return str(message)
    more = len(error.errors()) - 1
    rest = f" (and {more} more)" if more and kind.startswith("union") else ""
    return f"{path or 'value'} = {shown} is not allowed: {message}{rest}"


def most_relevant(error: ValidationError) -> ErrorDetails:
    """The problem to report: for a union, that of the member which the value resembles."""
    problems = error.errors(include_url=False)
    found = next((p for p in problems if not p["type"].endswith("_type")), problems[0])
    if found["type"] != "missing":
        return found
    # A key is missing where it was misspelt: the misspelt key says more.
    place = found["loc"][:-1]
    return next((p for p in problems if p["type"] == "extra_forbidden" and p["loc"][:-1] == place), found)


def as_written(
    location: Sequence[int | str], document: Any, *, is_missing: bool = False
) -> tuple[int | str, ...]:
    """A location without the members of unions, which are no keys of the document.

    Args:
        location: The location in pydantic's error.
        document: What was validated.
        is_missing: Whether the document lacks the last key.
    """
    if location and not _has(document, location[0]):
        # The error is of something else, which was made of the document's values.
        return tuple(location)
    written: list[int | str] = []
    for part in location:
        if _has(document, part):
            document = document[part]
            written.append(part)
    if is_missing:
        written.append(location[-1])
    return tuple(written)


def _has(document: Any, part: int | str) -> bool:
    """Whether a mapping has a key, or a list an index."""
    if isinstance(document, list | tuple):
        return isinstance(part, int) and part < len(document)
    return isinstance(document, Mapping) and part in document


def _tag_key(problem: ErrorDetails) -> str:
    """The discriminator of a union, such as `law`."""
    return str(problem["ctx"]["discriminator"]).strip("'")


def _is_name(part: int | str) -> bool:
    """Whether a part of a location is a key or an index, not a member of a union."""
    return isinstance(part, int) or part.isidentifier()
