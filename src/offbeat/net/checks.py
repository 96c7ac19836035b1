"""Checks of a set-up before its first run: what is checked, and what was found."""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from offbeat.core.errors import OffbeatError, reason_of

SetUp = TypeVar("SetUp")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: What was checked.
        passed: Whether it is as it must be.
        text: What was found; where it did not pass, what to do.
    """

    name: str
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class Check(Generic[SetUp]):
    """One check of a set-up.

    Attributes:
        name: What is checked.
        find: Returns what was found, or None where the set-up has nothing to check. Raises an `OffbeatError`
            or a `ConnectionError` that says what to do.
        after: Names of the checks without which this one makes no sense: it is left out if one has failed.
    """

    name: str
    find: Callable[[SetUp], str | None]
    after: Container[str] = ()


def run_checks(checks: Iterable[Check[SetUp]], set_up: SetUp) -> Iterator[CheckResult]:
    """Run checks in their order."""
    failed: list[str] = []
    for check in checks:
        if any(name in check.after for name in failed):
            continue
        try:
            text = check.find(set_up)
        except (OffbeatError, ConnectionError) as error:
            failed.append(check.name)
            yield CheckResult(check.name, False, reason_of(error))
        else:
            if text is not None:
                yield CheckResult(check.name, True, text)
