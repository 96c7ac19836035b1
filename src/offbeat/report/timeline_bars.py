"""Spans of a timeline: each client's training and waiting, followed from the rows of a journal.

A client that is present is either training (from its `train` command to the row that ends the task)
or waiting. The tracker is fed one row at a time and hands out each stretch once it has ended, so that
a journal of any length needs only the memory of the stretches still open.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

TaskEnd = Literal["arrived", "ready", "lost", "left", "stopped", "replaced", "running"]


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of what one client did; times in seconds from the run's begin."""

    client: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class TrainingSpan(Span):
    """One task of one client, from dispatch to its end.

    `steps` are those done, as far as is known: fewer than the `planned` ones where it was told to report
    early. `group` is the arrival group it was dispatched into, `staleness` the versions published
    meanwhile; `outcome` says how it ended ("running": not within the rows that were read).
    """

    task: int | None
    base: int | None
    steps: int | None
    group: int | None
    staleness: int | None
    outcome: TaskEnd
    planned: int | None = None


@dataclass(frozen=True, slots=True)
class WaitingSpan(Span):
    """A stretch in which a present client had nothing to train."""


@dataclass(slots=True)
class Tracker:
    """Turns journal rows into spans; rows must come in their order."""

    _open: dict[int, tuple[float, dict[str, Any] | None]] = field(default_factory=dict)

    def feed(self, row: dict[str, Any]) -> Span | None:
        """Take the next row.

        Args:
            row: A journal row as a flat mapping.

        Returns:
            The stretch that the row ends, if it ends one of some length.
        """
        client, name, t = row["client"], row["name"], float(row["t"])
        _, train = self._open.get(client, (t, None))
        match name:
            case "joined":
                self._open.setdefault(client, (t, None))
            case "train":
                ended = self._close(client, t, "replaced")
                self._open[client] = (t, row)
                return ended
            case "arrived" | "ready" | "lost" if train is not None and train["task"] == row["task"]:
                # Another task has ended before, such as one that was lost with a client that left.
                done = row.get("steps") if name != "lost" else None
                ended = self._close(client, t, name, row.get("staleness"), done)
                # A ready client waits until it may upload or its update is discarded.
                self._open[client] = (t, None)
                return ended
            case "discard" if train is not None and train["task"] == row["task"]:
                ended = self._close(client, t, "stopped")
                self._open[client] = (t, None)
                return ended
            case "left":
                return self._close(client, t, "left")
        return None

    def finish(self, t: float) -> list[Span]:
        """End every open stretch at `t`, in seconds, and return those of some length."""
        ended = [self._close(client, t, "running") for client in sorted(self._open)]
        return [span for span in ended if span is not None]

    def _close(
        self,
        client: int,
        t: float,
        outcome: TaskEnd,
        staleness: int | None = None,
        done: int | None = None,
    ) -> Span | None:
        start, train = self._open.pop(client, (t, None))
        if train is not None:
            return TrainingSpan(
                client=client,
                start=start,
                end=t,
                task=train["task"],
                base=train["base"],
                steps=train["steps"] if done is None else done,
                group=train.get("group"),
                staleness=staleness,
                outcome=outcome,
                planned=train["steps"],
            )
        return WaitingSpan(client, start, t) if t > start else None
