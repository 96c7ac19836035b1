"""A simulated run that is played: its rows become known one after another, as those of a real one do."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from msgspec.structs import astuple

import offbeat as ob
from offbeat.net.monitor.from_journal import JournalView
from offbeat.net.monitor.snapshot import Snapshot
from offbeat.runs import checksums
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.schema import DATABASE, SCHEMA

NAMES = {0: "cleveland", 1: "hungarian", 2: "switzerland", 3: "va-long-beach"}


class Played:
    """Plays a run into a directory of its own; `rejected` is shown as it is."""

    def __init__(self, source: RunRecord, place: Path, rejected: Mapping[str, int] | None = None) -> None:
        place.mkdir()
        self.directory, self.rejected = place, dict(rejected or {})
        self._rows, self._metrics = list(source.rows()), source.evaluations()
        self._books = JournalView(place.name, source.label, source.algorithm, NAMES)
        self._last = None
        with self._database() as database:
            sites = "CREATE TABLE sites(name TEXT, client INTEGER PRIMARY KEY, labels TEXT);"
            database.executescript(SCHEMA + checksums.SCHEMA + sites)
            meta = {**source.meta, "status": "running", "stop_reason": None, "duration": 0.0}
            for key, value in meta.items():
                database.execute("INSERT INTO meta VALUES (?, ?)", (key, json.dumps(value)))
            database.executemany("INSERT INTO sites VALUES (?, ?, NULL)", ((n, c) for c, n in NAMES.items()))

    def until(self, t: float) -> None:
        """Everything up to this time has happened."""
        with self._database() as database:
            while self._rows and self._rows[0].t <= t:
                row = self._rows.pop(0)
                self._books.feed(row)
                values = (*astuple(row)[:-1], json.dumps(row.data) if row.data else None)
                database.execute(f"INSERT INTO journal VALUES ({','.join('?' * 11)})", values)
            while self._metrics and self._metrics[0].t <= t:
                self._last = self._metrics.pop(0)
                values = (*self._last[:-1], None)
                database.execute(f"INSERT INTO metrics VALUES ({','.join('?' * 9)})", values)
        self._books.now = t

    def snapshot(self) -> Snapshot:
        """As a server would give it."""
        return replace(self._books.snapshot(self._last), rejected=self.rejected)

    def _database(self) -> "_Committed":
        return _Committed(self.directory / DATABASE)


class _Committed:
    """A connection for one transaction, closed at its end."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path)

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.commit()
        self._connection.close()


def recorded(place: Path, seconds: float = 300.0) -> RunRecord:
    """A simulated run of four clients without data, one of which leaves and comes back."""
    there = [[(0.0, None)], [(0.0, None)], [(0.0, 60.0), (90.0, None)], [(0.0, None)]]
    world = ob.World(
        [0.5, 1.0, 2.0, 4.0], jitter=0.1,
        availability=ob.Availability(dropout=[0.0, 0.2, 0.0, 0.1], intervals=there),
    )  # fmt: skip
    ob.simulate(ob.fedcompass(4, 20), world, until=ob.Until(seconds=seconds), out=place)
    return read_run(place)
