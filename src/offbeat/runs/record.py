"""Reader of a run's directory, while it is written or after."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from offbeat.core.errors import RunError, UsageError
from offbeat.core.journal import Row, expand
from offbeat.core.metric_names import numbers
from offbeat.runs.presentation import Presentation
from offbeat.runs.schema import DATABASE, FORMAT, ClientMetric, Metric
from offbeat.runs.summary import Summary


@dataclass(frozen=True)
class Checkpoint:
    """A point at which a run can be resumed.

    Attributes:
        journal: Number of journal rows before it.
        metrics: Number of evaluations before it.
        version: Version of the global model.
        state: File of the model and of the memories of the algorithm's parts.
        bases: Base version of each task in training.
        updates: (base version, learning rate, metrics) of each held update, by task.
        fresh: Version sent to each task in mid-task.
        clients: File of each client's state.
        client_bytes: Bytes of each client's state.
        guard: State of the guard, as `UpdateGuard.save` gave it; None means there is none.
        good: Version to which a rollback goes. None means that there is none.
    """

    journal: int
    metrics: int
    version: int
    state: str
    bases: dict[int, int]
    updates: dict[int, tuple[int, float, dict[str, float]]]
    fresh: dict[int, int] = field(default_factory=dict)
    clients: dict[int, str] = field(default_factory=dict)
    client_bytes: dict[int, int] = field(default_factory=dict)
    guard: tuple[dict[str, list[tuple[int, float]]], list[int]] | None = None
    good: int | None = None


@dataclass(frozen=True)
class RunRecord(Presentation):
    """A recorded run. Rows and evaluations are read from its database at each call.

    Attributes:
        path: The run's directory.
        meta: Entries of the table `meta`.
        label: Name of the run in tables and figures.
        seed: The run's seed.
        clients: Number of clients.
        status: "running", "interrupted", "failed" or "finished".
        stop_reason: Why the run ended.
        duration: Seconds of the run's clock until its end, or its last checkpoint.
        recipe: The recipe it was run from, if any.
    """

    path: Path
    meta: dict[str, Any]
    label: str
    seed: int
    clients: int
    status: str
    stop_reason: str | None
    duration: float
    recipe: dict[str, Any] | None

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return str(self.meta["algorithm"]["name"])

    @property
    def higher_is_better(self) -> dict[str, bool]:
        """Whether more is better of the metrics of which the run's learner said so, by name."""
        return dict(self.meta.get("higher_is_better", {}))

    @property
    def summary(self) -> Summary | None:
        """The run in numbers, if it has finished."""
        return Summary.read(self.meta["summary"]) if "summary" in self.meta else None

    def check_same(self, what: str, now: Mapping[str, Any]) -> None:
        """Raises `RunError` unless what the run was started with, by its name in meta, is given again."""
        then, now = self.meta[what], json.loads(json.dumps(now))
        for key in {**then, **now}:
            if key not in now:
                found = "now there is no such option; use the version of Offbeat it was started with"
            elif now[key] != then.get(key):
                found = f"now it is {now[key]!r}"
            else:
                continue
            raise RunError(
                f"{self.path} was started with another {what}: {key} was {then.get(key)!r}, {found}"
            )

    def rows(
        self, kind: str | None = None, *, after: int | None = None, limit: int | None = None
    ) -> Iterator[Row]:
        """Iterate over journal rows in order.

        Args:
            kind: "event" or "command". None means both.
            after: Only rows whose `seq` is above this. None means all.
            limit: Most rows. None means all.
        """
        last = -1 if after is None else after
        stored = self.select(
            "SELECT * FROM journal WHERE seq > ? AND kind = coalesce(?, kind) ORDER BY seq LIMIT ?",
            (last, kind, -1 if limit is None else limit),
        )
        found = (each for columns in stored for each in expand(_row(*columns), last))
        return islice(found, limit)

    @property
    def length(self) -> int:
        """Number of journal rows so far."""
        return int(next(self.select("SELECT coalesce(max(seq), -1) + 1 FROM journal"))[0])

    @property
    def journal(self) -> list[dict[str, Any]]:
        """All journal rows as flat mappings, read at each call; `rows` iterates."""
        return [row.flat() for row in self.rows()]

    def entries(self, name: str) -> list[dict[str, Any]]:
        """Journal rows of one name, such as "arrived" or "aggregate", as flat mappings."""
        return [row.flat() for row in self.rows() if row.name == name]

    def evaluations(self, *, after: int | None = None, limit: int | None = None) -> list[Metric]:
        """Evaluations in order; `after` and `limit` as of `rows`."""
        found = self.select(
            "SELECT * FROM metrics WHERE seq > ? ORDER BY seq LIMIT ?",
            (-1 if after is None else after, -1 if limit is None else limit),
        )
        return [
            Metric._make((*columns, numbers(json.loads(data)) if data else None)) for *columns, data in found
        ]

    def last_evaluation(self) -> Metric | None:
        """The latest evaluation, if there is one."""
        found = next(self.select("SELECT max(seq) FROM metrics"))[0]
        return None if found is None else self.evaluations(after=found - 1, limit=1)[0]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The evaluations as flat mappings, read at each call: t, version, tasks, bytes_up, loss, …"""
        return [flat(m) for m in self.evaluations()]

    def client_metrics(self, evaluation: int | None = None) -> list[dict[str, Any]]:
        """What the clients have found in evaluations there: a flat mapping for each evaluation and client.

        Args:
            evaluation: Number of an evaluation, `Metric.seq`. None means all.
        """
        if not self._has_table("client_metrics"):
            return []
        found = self.select(
            "SELECT * FROM client_metrics WHERE evaluation = coalesce(?, evaluation) "
            "ORDER BY evaluation, client",
            (evaluation,),
        )
        made = {metric.seq: metric for metric in self.evaluations()}
        rows = (ClientMetric._make((*columns, json.loads(data))) for *columns, data in found)
        return [row.flat(made[row.evaluation]) for row in rows]

    def _has_table(self, name: str) -> bool:
        """Whether the database has a table: not each format and kind of run has all."""
        return bool(list(self.select("SELECT 1 FROM sqlite_master WHERE type='table' AND name=?", (name,))))

    def client_samples(self) -> dict[int, int]:
        """Number of training samples by client."""
        return dict(self.select("SELECT client, samples FROM clients ORDER BY client"))

    def site_names(self) -> dict[int, str]:
        """Names of the clients of a deployed run; those of a simulation have none."""
        if not self._has_table("sites"):
            return {}
        return dict(self.select("SELECT client, name FROM sites ORDER BY client"))

    def checkpoint(self) -> Checkpoint | None:
        """The last checkpoint; None where there is none."""
        for *counts, text in self.select("SELECT journal, metrics, version, data FROM checkpoints"):
            data = dict(zip(("journal", "metrics", "version"), counts, strict=True)) | json.loads(text)
            return convert(data, Checkpoint, str_keys=True)
        return None

    def select(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Rows of a query; raises `UsageError` where the database cannot be read."""
        return _select(self.path, query, values)


def _row(*columns: Any) -> Row:
    """Make a row from its columns, of which `data` is JSON."""
    row = Row(*columns)
    return replace(row, data=json.loads(columns[-1])) if row.data else row


def flat(metric: Metric) -> dict[str, Any]:
    """Convert an evaluation to one flat mapping."""
    columns = {k: v for k, v in metric._asdict().items() if k not in ("seq", "data")}
    return (metric.data or {}) | columns


def read_run(directory: str | Path) -> RunRecord:
    """Read one run's directory.

    Args:
        directory: Directory of a run, running or ended.

    Raises:
        UsageError: It is not a run, cannot be read, or has a format this version does not know.
    """
    directory = Path(directory)
    if not (directory / DATABASE).is_file():
        raise UsageError(f"{directory} is not a run: it has no {DATABASE}")
    entries = list(_select(directory, "SELECT key, value FROM meta"))
    try:
        meta = {key: json.loads(value) for key, value in entries}
    except json.JSONDecodeError as error:
        raise UsageError(f"{directory / DATABASE} cannot be read: {error}") from None
    if meta.get("format") not in range(1, FORMAT + 1):
        raise UsageError(
            f"{directory}: format {meta.get('format')} is not known to this version, "
            f"which reads 1 to {FORMAT}"
        )
    known: dict[str, Any] = {"recipe": None, **meta}
    named = ("label", "seed", "clients", "status", "stop_reason", "duration", "recipe")
    return RunRecord(directory, meta, *(known[name] for name in named))


def find_runs(directory: str | Path) -> list[RunRecord]:
    """Read every run in a directory and below it. Raises `UsageError` where there is none."""
    directory = Path(directory)
    found = sorted(path.parent for path in directory.rglob(DATABASE)) if directory.is_dir() else []
    if not found:
        raise UsageError(f"{directory} holds no run: no {DATABASE} in it or below it")
    return [read_run(path) for path in found]


def _select(directory: Path, query: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Rows of a query. Raises `UsageError` where the database cannot be read."""
    path = directory / DATABASE
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            yield from database.execute(query, values)
    except sqlite3.Error as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
