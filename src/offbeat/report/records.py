"""What the reports need to know about a run, and how runs are grouped for comparison."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

from offbeat.core.errors import UsageError
from offbeat.core.journal import Row


class RunLike(Protocol):
    """One recorded run: its description, its journal and its evaluations.

    `duration` and every `t` are virtual seconds; accuracies are shares in [0, 1].
    """

    @property
    def label(self) -> str:
        """The name the run is compared under, such as "fedcompass+M"."""

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""

    @property
    def seed(self) -> int:
        """The seed of every random stream of the run."""

    @property
    def clients(self) -> int:
        """Number of clients in the fleet."""

    @property
    def status(self) -> str:
        """One of "running", "interrupted", "finished", "failed"."""

    @property
    def stop_reason(self) -> str | None:
        """Why the run stopped, when it did."""

    @property
    def duration(self) -> float:
        """Virtual seconds the run covers so far."""

    @property
    def recipe(self) -> dict[str, Any] | None:
        """The configuration the run was started from."""

    def rows(self, kind: str | None = None) -> Iterator[Row]:
        """Journal rows one after another; `kind` is "event" or "command", None means both."""

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Evaluations in order: t, version, tasks, bytes_up, bytes_down, loss, accuracy."""

    def client_samples(self) -> dict[int, int]:
        """Number of training samples of each client."""


AnyRun = TypeVar("AnyRun", bound=RunLike)


def group_runs(records: Sequence[AnyRun]) -> dict[str, list[AnyRun]]:
    """Group runs by label, labels in order of appearance, seeds ascending.

    Raises UsageError when there is no run, or when two runs share a label and a seed: counting
    one seed twice would make the deviations wrong.
    """
    if not records:
        raise UsageError("there is no run to report on: give at least one finished or running run")
    groups: dict[str, list[AnyRun]] = {}
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
