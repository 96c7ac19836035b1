"""How runs are grouped for comparison, and what they are compared by."""

from collections.abc import Sequence

from offbeat.core.errors import UsageError
from offbeat.runs.record import RunRecord


def group_runs(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Group runs by label.

    Args:
        records: The runs; those with the same label are seeds of one experiment.

    Returns:
        The runs of each label, labels in order of appearance, seeds ascending.

    Raises:
        UsageError: There is no run, or two runs share a label and a seed: counting one seed twice would make
            the deviations wrong.
    """
    if not records:
        raise UsageError("there is no run to report on: give at least one finished or running run")
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        group = groups.setdefault(record.label, [])
        if any(other.seed == record.seed for other in group):
            raise UsageError(
                f"two runs are labelled {record.label!r} with seed {record.seed}: "
                "give them different labels, or leave one out"
            )
        group.append(record)
    return {label: sorted(group, key=lambda run: run.seed) for label, group in groups.items()}


def check_target(target: float | None) -> None:
    """Raise UsageError unless `target` is None or an accuracy in (0, 1]."""
    if target is not None and not 0.0 < target <= 1.0:
        raise UsageError(f"target is {target:g}, but accuracies are shares: 0 < target <= 1 is allowed")
