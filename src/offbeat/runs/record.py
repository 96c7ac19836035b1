"""Reader of a run's directory, while it is written or after."""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

from msgspec import ValidationError, convert, structs

from offbeat.core.errors import UsageError, has_diverged, reason_of
from offbeat.core.journal import Row, expand
from offbeat.core.number_types import NumberType
from offbeat.core.printable import printable
from offbeat.documents import user_path
from offbeat.runs import checksums
from offbeat.runs.checksums import Key, read_table
from offbeat.runs.columns import (
    MOST_CLIENTS,
    check_meta,
    client_metric_row,
    client_row,
    journal_row,
    meta_entry,
    metric_row,
    site_row,
)
from offbeat.runs.damage import damage, is_environment, reading
from offbeat.runs.database import open_database
from offbeat.runs.journal_archive import read_journal
from offbeat.runs.permissions import ASK_TO_READ, may_read
from offbeat.runs.presentation import Presentation
from offbeat.runs.schema import DATABASE, FORMAT, LOCK, MODEL, SITE_FILES, Metric
from offbeat.runs.summary import Summary

_FILE = re.compile(r"[\w-]+\.safetensors")


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
        guard: State of the guard, as its `save` gave it; None means there is none.
        good: Version to which a rollback goes. None means that there is none.
        cached: Task, base version and rate of each client's update in the server's cache.
        number: Type of number of the versions of `bases`, `updates` and `fresh`.
    """

    journal: int
    metrics: int
    version: int
    state: str
    bases: dict[int, int]
    updates: dict[int, tuple[int, float, dict[str, float]]]
    fresh: dict[int, int]
    clients: dict[int, str]
    client_bytes: dict[int, int]
    guard: Any
    good: int | None
    cached: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    number: NumberType = "float32"


# Keys of a recipe's data that only a simulation uses.
_OF_SIMULATIONS = ("partition", "drop_empty", "validation")


def _columns(*columns: Any) -> tuple[Any, ...]:
    return columns


@dataclass(frozen=True, repr=False)
class RunRecord(Presentation):
    """A recorded run. Each call reads rows and evaluations from the run's database.

    Attributes:
        path: The run's directory.
        meta: Entries of the table `meta`.
        label: Name of the run in tables and figures.
        seed: The run's seed.
        clients: Number of clients.
        status: "running", "interrupted", "failed", "diverged" or "finished".
        stop_reason: Why the run ended.
        duration: Seconds of the run's clock until its end, or its last checkpoint.
        recipe: The recipe of the run, if any.
        origin: The moment from which `from_begin` counts, in seconds of the run's clock.
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
    origin: float = 0.0

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return str(self.entry("algorithm")["name"])

    @property
    def higher_is_better(self) -> dict[str, bool]:
        """Whether more is better of the metrics of which the run's learner said so, by name."""
        return dict(self.meta.get("higher_is_better", {}))

    @property
    def diverged(self) -> bool:
        """Whether its training has diverged: a loss was not finite, or the guard has ended the run."""
        return self.status == "diverged" or has_diverged(self.stop_reason)

    @property
    def processors(self) -> tuple[str, ...]:
        """The kinds of processor that made it, in order."""
        return tuple(self.entry("processors"))

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """Names of the columns of its tables, of "x", "y" or an input, in order; empty without names."""
        found = self.meta.get("columns") or self.meta.get("plan", {}).get("columns") or {}
        return {name: tuple(names) for name, names in found.items()}

    @property
    def served(self) -> bool:
        """Whether sites train it, or nodes of Flower: it is a server's state directory."""
        return "plan" in self.meta

    @property
    def recipe_as_run(self) -> dict[str, Any] | None:
        """The recipe without what a server ignores, since data and speeds are those of its sites."""
        if self.recipe is None or not self.served:
            return self.recipe
        kept = {key: value for key, value in self.recipe.items() if key != "world"}
        if isinstance(data := kept.get("data"), dict):
            kept["data"] = {key: value for key, value in data.items() if key not in _OF_SIMULATIONS}
        return kept

    @property
    def summary(self) -> Summary | None:
        """The run in numbers, if it has finished."""
        with reading(self.path / DATABASE):
            return Summary.read(self.meta["summary"]) if "summary" in self.meta else None

    @property
    def begun(self) -> float | None:
        """When the run began, in seconds of its clock: a server waits for its sites before. None: not yet."""
        # Each client gets its first task when the run begins.
        return next((row.t for row in self.rows() if row.name in ("begin", "train")), None)

    def from_begin(self) -> "RunRecord":
        """The run with its times from the moment that it began, as `until.seconds` counts them.

        The clock of a server starts with its process, and the run when all sites have registered. What was
        before is at 0. A simulation begins with its clock.
        """
        if not self.served or self.origin:
            return self
        begun = self.begun
        origin = inf if begun is None else begun
        return replace(self, origin=origin, duration=max(0.0, self.duration - origin))

    def entry(self, name: str) -> Any:
        """The entry of a name in meta, which a whole run has. Raises `DamageError` where it has none."""
        if name not in self.meta:
            raise damage(self.path / DATABASE, f"has no entry {name} in its table meta")
        return self.meta[name]

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
        rows = _read(
            self.path,
            lambda database: _made("journal", journal_row, read_journal(database, last + 1)),
        )
        found = islice(self._wanted(rows, kind, last), limit)
        return map(self._row_from_origin, found) if self.origin else found

    def _row_from_origin(self, row: Row) -> Row:
        return structs.replace(row, t=max(0.0, row.t - self.origin))

    def _wanted(self, rows: Iterator[Row], kind: str | None, last: int) -> Iterator[Row]:
        """The rows after `last` and of a kind, each with a client that the run has."""
        for row in rows:
            if row.seq <= last or kind not in (None, row.kind):
                continue
            if row.client is None or row.client >= MOST_CLIENTS:
                yield from expand(self._possible(row), last)
            else:
                yield row

    def _possible(self, row: Row) -> Row:
        """A row whose clients the run has. Raises `DamageError` for another one."""
        present = (row.data or {}).get("clients") if row.name == "joined" and row.client is None else None
        client = (present or 0) - 1 if row.client is None else row.client
        if client >= MOST_CLIENTS or isinstance(present, int):
            known = int(next(self.select("SELECT count(*) FROM clients"))[0])
            if client >= (known if row.client is None else max(MOST_CLIENTS, known)):
                problem = f"has client {client} in journal row {row.seq}, and {known} in its table clients"
                raise damage(self.path / DATABASE, problem)
        return row

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
        last = -1 if after is None else after
        found = self.table("metrics", metric_row, last + 1)
        wanted = list(islice((metric for metric in found if metric.seq > last), limit))
        if not self.origin:
            return wanted
        return [metric._replace(t=max(0.0, metric.t - self.origin)) for metric in wanted]

    def last_evaluation(self) -> Metric | None:
        """The latest evaluation, if there is one."""
        found = next(self.select("SELECT max(seq) FROM metrics"))[0]
        last = self.evaluations(after=None if found is None else found - 1)
        return last[-1] if last else None

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The evaluations as flat mappings, read at each call: t, version, tasks, bytes_up, loss, …"""
        return [flat(m) for m in self.evaluations()]

    def client_metrics(self, evaluation: int | None = None) -> list[dict[str, Any]]:
        """Metrics of the clients in evaluations there: a flat mapping for each evaluation and client.

        Args:
            evaluation: Number of an evaluation, `Metric.seq`. None means all.
        """
        made = {metric.seq: metric for metric in self.evaluations()}
        rows = self.table("client_metrics", client_metric_row, evaluation)
        wanted = (row for row in rows if evaluation in (None, row.evaluation))
        with reading(self.path / DATABASE):
            return [row.flat(made[row.evaluation]) for row in wanted]

    def has_table(self, name: str) -> bool:
        """Whether the database has a table: not each kind of run has all."""
        return bool(next(_read(self.path, lambda database: iter([checksums.has_table(database, name)]))))

    def client_samples(self) -> dict[int, int]:
        """Number of training samples by client."""
        return {client: samples for client, samples, _ in self.table("clients", client_row)}

    def client_names(self) -> dict[int, str]:
        """Names of the clients by number: the sites of a deployed run, and clients whose data have names."""
        return self.site_names() or dict(enumerate(self.meta.get("client_names", ())))

    def site_names(self) -> dict[int, str]:
        """Names of the clients of a deployed run; empty for a simulation."""
        return {client: name for name, client, _ in self.sites()}

    def sites(self) -> list[tuple[str, int, str | None]]:
        """Name, client and labels, as JSON, of each site of a deployed run, by client."""
        return list(self.table("sites", site_row)) if self.has_table("sites") else []

    def checkpoint(self) -> Checkpoint | None:
        """The last checkpoint; None where none was written."""
        return next(self.table("checkpoints", checkpoint_row), None)

    def table(
        self, name: str, make: Callable[..., Any] = _columns, first: Key | None = None
    ) -> Iterator[Any]:
        """Iterate over the rows of a table, which are as they were written.

        Args:
            name: The table.
            make: Makes of a row's columns what is yielded.
            first: Key of the first row that is needed; there can be earlier ones. None means all.

        Raises:
            DamageError: The database is missing or damaged.
            UsageError: It cannot be opened.
        """
        return _read(self.path, lambda database: _made(name, make, read_table(database, name, first)))

    def select(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Rows of a query; errors: as of `table`, but no checksum is checked."""
        return _read(self.path, lambda database: database.execute(query, values))


def _made(table: str, make: Callable[..., Any], rows: Iterator[Any]) -> Iterator[Any]:
    """Values made of a table's rows. Raises `ValueError` for a row whose columns have other types."""
    for row in rows:
        try:
            yield make(*row)
        except ValidationError as error:
            raise ValueError(f"{error} of a row of the table {table}") from None


def checkpoint_row(_id: int, journal: int, metrics: int, version: int, data: str) -> Checkpoint:
    """The checkpoint of a row. Raises `ValueError` where it names a file outside of the directory."""
    counts = {"journal": journal, "metrics": metrics, "version": version}
    found = convert(counts | json.loads(data), Checkpoint, str_keys=True)
    for name in (found.state, *found.clients.values()):
        if not _FILE.fullmatch(name):
            raise ValueError(f"its checkpoint names {name!r:.60}, which is no file of the directory")
    return found


def flat(metric: Metric) -> dict[str, Any]:
    """Convert an evaluation to one flat mapping."""
    columns = {k: v for k, v in metric._asdict().items() if k not in ("seq", "data")}
    return (metric.data or {}) | columns


def read_run(directory: str | Path) -> RunRecord:
    """Read one run's directory.

    Args:
        directory: Directory of a run, running or ended.

    Raises:
        UsageError: The directory is not a run, cannot be opened, or has another format than this version
            reads.
        DamageError: The run's database is damaged.
    """
    directory = user_path(directory)
    database = directory / DATABASE
    if not holds_run(directory):
        raise UsageError(f"{directory} is not a run: it has no {DATABASE}")
    meta = dict(_read(directory, lambda opened: (meta_entry(*row) for row in read_table(opened, "meta"))))
    if (found := meta.get("format", FORMAT)) != FORMAT:
        raise UsageError(
            f"{database} has format {found!r:.40}, and this version of Offbeat reads {FORMAT}: use the "
            f"version that wrote it ({printable(str(meta.get('offbeat')))[:40]})"
        )
    fields: dict[str, Any] = {"recipe": None, **meta}
    named = ("label", "seed", "clients", "status", "stop_reason", "duration", "recipe")
    for name in ("format", *named):
        if name not in fields:
            raise damage(database, f"has no entry {name} in its table meta")
    with reading(database):
        check_meta(meta)
    record = RunRecord(directory, meta, *(fields[name] for name in named))
    if record.clients > MOST_CLIENTS:
        listed = int(next(record.select("SELECT count(*) FROM clients"))[0])
        if record.clients > listed:
            raise damage(database, f"has {record.clients} clients, and {listed} in its table clients")
    return record


def find_runs(directory: str | Path) -> list[RunRecord]:
    """Read every run in a directory and below it. Raises `UsageError` if there is none."""
    directory = user_path(directory)
    found = sorted(path.parent for path in directory.rglob(DATABASE)) if directory.is_dir() else []
    if not found:
        if holds_run(directory):
            return [read_run(directory)]
        raise UsageError(f"{directory} holds no run: no {DATABASE} in it or below it")
    return [read_run(path) for path in found]


def holds_run(directory: Path) -> bool:
    """Whether a directory holds a run: its database, or files that only a lost database leaves.

    Raises `UsageError` where this user may not look into the directory.
    """
    # A run that was killed before its first checkpoint has no file but its log.
    log = directory / f"{DATABASE}-wal"
    try:
        left = (directory / LOCK).is_file() and (directory / MODEL).is_file()
        found = (directory / DATABASE).is_file() or left or log.is_file()
    except PermissionError:
        raise UsageError(f"{directory} cannot be read by this user: {ASK_TO_READ}") from None
    return found or any(directory.glob("state-*.safetensors"))


def is_site(directory: Path) -> bool:
    """Whether a directory has a site's state."""
    return not holds_run(directory) and any((directory / name).is_file() for name in SITE_FILES)


def _read(directory: Path, rows: Callable[[sqlite3.Connection], Iterator[Any]]) -> Iterator[Any]:
    """Rows that a function reads from a run's database; raises `DamageError`, or `UsageError` to open it."""
    path = directory / DATABASE
    with reading(path):
        try:
            # A generator that is left early may be closed in another thread.
            with closing(open_database(path)) as database:
                yield from rows(database)
        except sqlite3.Error as error:
            if is_environment(error) and path.is_file():
                why = reason_of(error) if may_read(path) else f"this user may not: {ASK_TO_READ}"
                raise UsageError(f"{path} cannot be read: {why}") from None
            raise
