"""One clear line out of a validation error: the option, its value, what is allowed."""

from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import ConfigDict, ValidationError

CLOSED = ConfigDict(extra="forbid")
"""Configuration of every checked dataclass: an unknown key is an error."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint such as `; did you mean "fedbuff"?`, or the list of what is known."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else f"; known: {', '.join(names)}"


def explain(error: ValidationError, known: Iterable[str] = ()) -> str:
    """The first problem of a validation error as one line; `known` names the options there are."""
    problem = error.errors(include_url=False, include_context=False)[0]
    path = ".".join(str(part) for part in problem["loc"] if _is_name(part)) or "value"
    kind = problem["type"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown key {path}{did_you_mean(str(problem['loc'][-1]), known)}"
    if kind in ("missing", "missing_argument"):
        return f"{path} is missing"
    message = problem["msg"].removeprefix("Value error, ").replace("Input should", "should")
    more = len(error.errors()) - 1
    rest = f" (and {more} more)" if more and kind.startswith("union") else ""
    value = repr(problem["input"])
    shown = value if len(value) <= 60 else value[:57] + "..."
    return f"{path} = {shown} is not allowed: {message}{rest}"


def _is_name(part: int | str) -> bool:
    """Is this part of a location a key or an index, not a member of a union?"""
    return isinstance(part, int) or part.isidentifier()
