"""The journal: every event and command of a run, in order, as flat rows.

Every row has the same ten columns; values of one kind only are in `data`.
Rows are what a database stores, what `offbeat replay --print` prints, and what a replay reads.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, convert, json
from msgspec.structs import asdict, replace

from offbeat.core import commands, events
from offbeat.core.errors import RunError
from offbeat.core.fleet import Labels
from offbeat.core.schedule import Task

EVENT_NAMES = (
    "joined", "begin", "wants_model", "ready", "measured", "arrived", "lost", "left", "timer", "skipped",
    "rolled_back", "committee", "releasing", "released",
)  # fmt: skip


class Row(Struct, frozen=True, gc=False):
    """One event or command.

    Attributes:
        seq: Number of the row, from 0.
        t: Seconds of the run's clock.
        kind: "event" or "command".
        name: One of `EVENT_NAMES` or `COMMAND_NAMES`.
        client: The client concerned, if any.
        task: The task concerned, if any.
        base: Version that the task started from.
        version: The current version; for an aggregation and a rollback, the one it makes.
        staleness: Staleness in versions.
        steps: Local steps.
        data: Further values of this kind of row.
    """

    seq: int
    t: float
    kind: str
    name: str
    client: int | None = None
    task: int | None = None
    base: int | None = None
    version: int | None = None
    staleness: int | None = None
    steps: int | None = None
    data: dict[str, Any] | None = None

    def flat(self) -> dict[str, Any]:
        """One flat mapping: the columns, then what `data` holds."""
        columns = asdict(self)
        del columns["data"]
        return {**columns, **(self.data or {})}


def present_row(samples: Sequence[int], steps_per_epoch: Sequence[int], labels: Labels | None = None) -> Row:
    """One row for clients 0 … n − 1 that are present from the start, in place of a `joined` row each.

    It has the number of the last of those; `expand` yields them. A number in `data` holds for all clients.
    """
    data: dict[str, Any] = {
        "clients": len(samples), "samples": _same(samples), "steps_per_epoch": _same(steps_per_epoch)
    }  # fmt: skip
    if labels is not None and any(own is not None for own in labels):
        data["labels"] = [None if own is None else list(own) for own in labels]
    return Row(len(samples) - 1, 0.0, "event", "joined", version=0, data=data)


def _same(values: Sequence[int]) -> int | list[int]:
    """The common value of all, or their list."""
    return values[0] if values.count(values[0]) == len(values) else list(values)


def _of(client: int, values: int | list[int]) -> int:
    """One client's value of what `_same` returned."""
    return values[client] if isinstance(values, list) else values


def expand(row: Row, after: int = -1) -> Iterator[Row]:
    """Expand a row of `present_row`, any other into itself; yields rows with `seq` above `after` only."""
    if row.name != "joined" or row.client is not None:
        if row.seq > after:
            yield row
        return
    data = row.data or {}
    samples, steps_per_epoch, labels = data["samples"], data["steps_per_epoch"], data.get("labels")
    first = row.seq + 1 - data["clients"]
    for client in range(max(0, after + 1 - first), data["clients"]):
        own = {"samples": _of(client, samples), "steps_per_epoch": _of(client, steps_per_epoch)}
        if labels is not None and labels[client] is not None:
            own["labels"] = labels[client]
        yield replace(row, seq=first + client, client=client, data=own)


def event_row(seq: int, t: float, event: events.Event, version: int, task: Task | None) -> Row:
    """The row of an event; `task` is the server's record of the task it is about."""
    match event:  # the most frequent kind first
        case events.Arrived() | events.Ready():
            assert task is not None
            name, stale = ("arrived", task.staleness) if type(event) is events.Arrived else ("ready", None)
            data = {**event.metrics, "seconds": t - task.started}
            if type(event) is events.Arrived and event.line is not None:
                line = event.line
                data |= zip(LINE, (line.received, line.trained, line.sent, line.latency), strict=True)
            return Row(
                seq, t, "event", name, event.client, event.task, task.base, version, stale, event.steps, data
            )
        case events.WantsModel():
            assert task is not None
            name, base, stale = "wants_model", task.base, version - task.base
            return Row(seq, t, "event", name, event.client, event.task, base, version, stale, event.steps)
        case events.Measured():
            capacities = [[client, capacity] for client, capacity in event.capacities]
            measured = {"capacities": capacities, "symbols": event.symbols}
            return Row(seq, t, "event", "measured", version=version, data=measured)
        case events.Timer():
            return Row(seq, t, "event", "timer", version=version, data={"timer": event.timer})
        case events.Joined():
            joined: dict[str, Any] = {"samples": event.samples, "steps_per_epoch": event.steps_per_epoch}
            if event.labels is not None:
                joined["labels"] = list(event.labels)
            return Row(seq, t, "event", "joined", event.client, event.holds, version=version, data=joined)
        case events.Begin():
            return Row(seq, t, "event", "begin", version=version)
        case events.Skipped():
            return Row(seq, t, "event", "skipped", version=event.version, data={"reason": event.reason})
        case events.RolledBack():
            return Row(
                seq, t, "event", "rolled_back", version=version + 1,
                data={"to": event.to, "reason": event.reason},
            )  # fmt: skip
        case events.CommitteeFormed():
            formed: dict[str, Any] = {
                "epoch": event.epoch, "run": event.run, "helpers": [list(helper) for helper in event.helpers]
            }  # fmt: skip
            return Row(seq, t, "event", "committee", version=version, data=formed)
        case events.Releasing() | events.Released():
            name = "releasing" if isinstance(event, events.Releasing) else "released"
            fields: dict[str, Any] = json.decode(json.encode(event))
            del fields["version"]
            # A run that knew none of these fields recorded the event without them.
            for later in _LATER:
                if not fields.get(later, True):
                    del fields[later]
            return Row(seq, t, "event", name, version=event.version, data=fields)
        case events.Lost() | events.Left():
            name, reason = "lost" if isinstance(event, events.Lost) else "left", {"reason": event.reason}
            lost, start, steps = (task.id, task.base, task.steps) if task else (event.task, None, None)
            return Row(seq, t, "event", name, event.client, lost, start, version, None, steps, reason)


def command_row(seq: int, t: float, command: commands.Command, version: int) -> Row:
    """The row of a stamped command, given at time `t` when `version` was current."""
    match command:  # the most frequent kinds first
        case commands.Train():
            data = dict(command.note)
            if command.ask_after:
                data["ask_after"] = command.ask_after
            if command.lr_factor != 1.0:
                data["lr_factor"] = command.lr_factor
            if command.hold:
                data["hold"] = True
            return Row(
                seq, t, "command", "train", command.client, command.task, command.base, command.base,
                None, command.steps, data or None,
            )  # fmt: skip
        case commands.Aggregate():
            tasks, clients = list(command.tasks), list(command.clients)
            data = {"tasks": tasks, "clients": clients, "server_step": command.server_step, **command.note}
            return Row(seq, t, "command", "aggregate", version=command.version, data=data)
        case _:
            name, fields = _COMMANDS[type(command)]
            values = {field: getattr(command, field) for field in fields}
            data = {key: list(own) if isinstance(own, tuple) else own for key, own in values.items()}
            client, task = getattr(command, "client", None), getattr(command, "task", None)
            return Row(seq, t, "command", name, client, task, version=version, data=data or None)


LINE = tuple(f"line.{part}" for part in events.Line.__struct_fields__)
"""Names of the parts of an update's `line` in its row."""
NOT_METRICS = frozenset({"seconds", *LINE})
"""What the row of an update has beside the client's own metrics."""

_LATER = ("complaints", "at_fault", "invalid", "formed")
"""Values of a `Released` that its row has only where there are any."""

_COMMANDS: dict[type, tuple[str, tuple[str, ...]]] = {
    commands.Send: ("send", ("clock",)),
    commands.Recall: ("recall", ()),
    commands.Measure: ("measure", ("clients", "seconds")),
    commands.Upload: ("upload", ("bits",)),
    commands.Discard: ("discard", ("reason",)),
    commands.Drop: ("drop", ("reason",)),
    commands.SetTimer: ("timer_set", ("timer", "at")),
    commands.CancelTimer: ("timer_cancelled", ("timer",)),
    commands.Stop: ("stop", ("reason",)),
}
"""The name of a command's row and the fields that are its `data`, by the command's kind."""

COMMAND_NAMES = ("train", "aggregate", *(name for name, _ in _COMMANDS.values()))


def event_of(row: Row) -> events.Event:
    """The event a row records."""
    data = row.data or {}
    match row.name:
        case "ready" | "arrived" as name:
            told = _known(row.client), _known(row.task), _known(row.steps), metrics_of(row)
            return events.Ready(*told) if name == "ready" else events.Arrived(*told, line_of(row))
        case "measured":
            return events.Measured(tuple(map(tuple, data["capacities"])), data["symbols"])
        case "wants_model":
            return events.WantsModel(_known(row.client), _known(row.task), _known(row.steps))
        case "timer":
            return events.Timer(data["timer"])
        case "joined":
            labels = tuple(data["labels"]) if "labels" in data else None
            samples, steps_per_epoch = data["samples"], data["steps_per_epoch"]
            return events.Joined(_known(row.client), samples, steps_per_epoch, row.task, labels)
        case "begin":
            return events.Begin()
        case "skipped":
            return events.Skipped(_known(row.version), data["reason"])
        case "rolled_back":
            return events.RolledBack(data["to"], data["reason"])
        case "committee":
            return convert(data, events.CommitteeFormed)
        case "releasing":
            return convert({"version": row.version, **data}, events.Releasing)
        case "released":
            return convert({"version": row.version, **data}, events.Released)
        case "lost":
            return events.Lost(_known(row.client), _known(row.task), data["reason"])
        case "left":
            return events.Left(_known(row.client), row.task, data["reason"])
    raise RunError(f"journal row {row.seq} has an unknown event {row.name!r}")


def metrics_of(row: Row) -> events.Metrics:
    """The client's own metrics in the row of an update."""
    return {name: value for name, value in (row.data or {}).items() if name not in NOT_METRICS}


def line_of(row: Row) -> events.Line | None:
    """What the row of an update says of its line, if anything."""
    data = row.data or {}
    return events.Line(*(data[key] for key in LINE)) if all(key in data for key in LINE) else None


def _known(value: int | None) -> int:
    if value is None:
        raise RunError("a journal row lacks its client, task, steps or version")
    return value
