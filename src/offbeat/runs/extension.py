"""Runs that go on: whether the simulator may resume them, and whether new limits continue ended ones."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from offbeat.core.errors import UsageError
from offbeat.core.limits import Until
from offbeat.runs.damage import damage, reading
from offbeat.runs.evaluation_log import EvaluationLog
from offbeat.runs.record import RunRecord
from offbeat.runs.schema import DATABASE
from offbeat.runs.summary import Summary

_LIMITS = TypeAdapter(Until)


def goes_on(record: RunRecord, until: Until | None) -> bool:
    """Whether a run that has ended goes on under these limits.

    It does where they are not those that it was run with, and it has reached none of them.

    Args:
        record: The run.
        until: The limits. None means those that are recorded.

    Raises:
        UsageError: It should go on, and its directory has no checkpoint of its end.
    """
    if until is None or until == recorded_until(record) or reached(record, until) is not None:
        return False
    if record.checkpoint() is None:
        raise UsageError(
            f"the run of {record.path} has ended ({record.stop_reason}) and cannot go on: it kept no "
            "checkpoint of its end, as those of comparisons, with secure aggregation, and without "
            f"keep_checkpoint. Begin a new run from its weights (--set initial={record.path})"
        )
    return True


def check_simulated(record: RunRecord) -> None:
    """Raises `UsageError` for the run of a server, which no simulator can resume."""
    if record.served:
        raise UsageError(
            f"{record.path} is the state directory of a server: serve it again, as it was served, to "
            "continue it (offbeat serve RECIPE --state DIR; --set until.KEY=VALUE gives it other limits)"
        )


def check_extension(record: RunRecord, until: Until | None) -> bool:
    """As `goes_on`, for a person who asks that the run goes on, or leaves the limits as they were: None.

    Raises:
        UsageError: As of `goes_on`; and where the limits that are given are reached.
    """
    if goes_on(record, until):
        return True
    if until is not None and until != recorded_until(record):
        raise UsageError(
            f"{record.path} has ended ({record.stop_reason}) and does not go on under these limits: it has "
            f"reached one of them too ({reached(record, until)}). Give others, or null for none"
        )
    return False


def reached(record: RunRecord, until: Until) -> str | None:
    """The limit that an ended run has reached by its end; None if it has reached none."""
    summary = Summary.read(record.entry("summary"))
    if until.seconds is not None and until.seconds <= record.from_begin().duration:
        return until.out_of_time
    if (reason := until.reached(summary.versions, summary.tasks)) is not None:
        return reason
    log = EvaluationLog(until, record.higher_is_better)
    for metric in record.evaluations():
        log.restore(metric)
        if log.reached is not None:
            return log.reached
    return None


def recorded_until(record: RunRecord) -> Until:
    """The limits that a run was last given. Raises `DamageError` where what is recorded are no limits."""
    found = record.entry("until")
    try:
        with reading(record.path / DATABASE):
            return _LIMITS.validate_python(found)
    except UsageError as error:
        raise damage(record.path / DATABASE, f"has limits that are not allowed ({error})") from None


def limits_meta(until: Until, recipe: Mapping[str, Any] | None) -> dict[str, Any]:
    """The entries of the table `meta` that tell a run's limits.

    Args:
        until: The limits.
        recipe: The recorded recipe, which may name limits. None means that there is none.
    """
    document = asdict(until)
    named = recipe is not None and "until" in recipe
    return {"until": document} | ({"recipe": {**(recipe or {}), "until": document}} if named else {})
