"""The number of the rule that a schedule follows, where a mended schedule gives other commands than before.

A run records the number with its algorithm. A record without one follows rule 1, so that runs which were
recorded before the schedule was mended replay and resume with the commands they have.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import UsageError
from offbeat.core.schedule import Schedule
from offbeat.core.wrapper import Wrapper

RULE = "schedule_rule"
"""Key of the number in a recorded algorithm."""


def described_rule(algorithm: Algorithm) -> dict[str, int]:
    """The entry of a record about the rule: empty for rule 1."""
    return {RULE: algorithm.schedule.rule} if algorithm.schedule.rule > 1 else {}


def recorded_schedule_rule(described: Mapping[str, Any]) -> int:
    """The rule of a recorded algorithm."""
    return int(described.get(RULE, 1))


def without_rule(described: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded algorithm's name and hyper-parameters, of which it is built."""
    return {key: value for key, value in described.items() if key != RULE}


def with_rule(algorithm: Algorithm, rule: int) -> Algorithm:
    """The algorithm, whose schedule follows this rule; one that has no such rule is left as it is."""
    if algorithm.schedule.rule == rule:
        return algorithm
    try:
        return replace(algorithm, schedule=_following(algorithm.schedule, rule))
    except (UsageError, TypeError):
        return algorithm


def _following(schedule: Any, rule: int) -> Schedule:
    """The schedule, or the one inside of its wrappers, with another rule."""
    inside = isinstance(schedule, Wrapper)
    changed = {"inner": _following(schedule.inner, rule)} if inside else {"rule": rule}
    following: Schedule = replace(schedule, **changed)
    return following
