"""Replay: recorded events into a fresh state machine, which must give the recorded commands."""

from collections.abc import Iterator
from dataclasses import dataclass

from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Aggregate
from offbeat.core.errors import OffbeatError
from offbeat.core.journal import Row, command_row, event_of, event_row
from offbeat.core.server import Server
from offbeat.runs.record import RunRecord


@dataclass(frozen=True)
class Replay:
    """How a replay went: what was compared, and the first difference, if any, as one line."""

    events: int
    commands: int
    difference: str | None


def replay(record: RunRecord, algorithm: Algorithm) -> Replay:
    """Feed a run's events to the algorithm's state machine; no model is involved."""
    server = Server(algorithm.schedule, record.seed)
    recorded = record.rows()
    events = commands = 0
    row = next(recorded, None)
    while row is not None:
        if row.kind != "event":
            return Replay(
                events, commands, f"row {row.seq}: {_show(row)} is recorded, but nothing commands it"
            )
        try:
            reaction = list(_react(server, row))
        except OffbeatError as error:
            return Replay(events, commands, f"row {row.seq}: {_show(row)} is recorded, but {error}")
        for given in reaction:
            if given.kind == "event":
                events += 1
            else:
                commands += 1
            if row is None or given != row:
                found = "the journal ends" if row is None else f"the journal has {_show(row)}"
                return Replay(events, commands, f"row {given.seq}: the replay gives {_show(given)}, {found}")
            row = next(recorded, None)
    return Replay(events, commands, None)


def _react(server: Server, row: Row) -> Iterator[Row]:
    """The rows that the event of `row` makes."""
    event = event_of(row)
    version = server.version
    commands = server.feed(row.t, event)
    yield event_row(row.seq, row.t, event, version, server.subject)
    for offset, command in enumerate(commands, 1):
        version = command.version if isinstance(command, Aggregate) else version
        yield command_row(row.seq + offset, row.t, command, version)


def _show(row: Row) -> str:
    known = {k: v for k, v in row.flat().items() if v is not None and k not in ("seq", "kind", "name")}
    return f"{row.name}({', '.join(f'{k}={v}' for k, v in known.items())})"
