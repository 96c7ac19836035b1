"""Rows of results: one for each finished run, in a CSV file for each study; curves and levels beside it.

A row is found by the digest of its run. Several processes may append at the same time, because a file lock
protects the file. A row is on the disk when `Results.append` returns. Readers drop a last row that a crash
has cut.
"""

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

from filelock import FileLock
from msgspec import ValidationError, convert

from offbeat.core.errors import UsageError, reason_of
from offbeat.core.metric_names import CLIENTS, WORST
from offbeat.documents import read_text
from offbeat.runs.csv_text import csv_text, text_of
from offbeat.runs.durable_files import sync_directory
from offbeat.runs.permissions import file_mode
from offbeat.verdicts.cost import Cost
from offbeat_papers.levels import RunLevels
from offbeat_papers.provenance import CommitState, commit_state
from offbeat_papers.study import COSTS, VALUES

DIVERGED = "has diverged"
"""End of the reason for which a run stops whose training diverges."""

_MOST_BYTES = 2**28  # bytes of a file of rows
_LARGEST = 1e100
"""Largest number of a row; a run that gives a larger one has this one."""
_CURVES, _LEVELS = "-curves", "-levels"  # ends of the names of the files beside one of rows
Spent = Sequence[float]
"""Costs before an evaluation: virtual seconds, versions, tasks that arrived, bytes up and down."""


@dataclass(frozen=True)
class ResultRow:
    """A finished run in numbers.

    Attributes:
        study: Name of the study, "paper/study".
        size: Its size.
        column: Its column.
        label: Its label.
        seed: Its seed.
        digest: Digest of all that determines its numbers.
        version: Version of Offbeat.
        commit: Commit of the checkout, with "-dirty" where files of the package were changed; or "unknown".
        machine: Processor, cores, and PyTorch's version.
        seconds: Virtual seconds of the run.
        processor: Processor seconds of the run. None means unknown, because the run was interrupted and
            resumed.
        versions: Versions made.
        tasks: Updates that arrived.
        bytes_up: Bytes sent by clients.
        bytes_down: Bytes sent to clients.
        ended: Why it ended: a limit, or that the training has diverged.
        spent: Costs at the last evaluation, by metric. The cost of a target that was not reached is above
            them.
        best: Best value by metric.
        final: Value of the last evaluation by metric.
        level: Mean over the last fifth of the time, by metric.
        change: Mean absolute change from one evaluation to the next in that fifth, by metric.
        reached: Costs at the first evaluation that reached a target, by metric and target. None means that no
            evaluation did.
    """

    study: str
    size: str
    column: str
    label: str
    seed: int
    digest: str
    version: str
    commit: str
    machine: str
    seconds: float
    processor: float | None
    versions: int
    tasks: int
    bytes_up: int
    bytes_down: int
    ended: str
    spent: Mapping[str, Spent]
    best: Mapping[str, float]
    final: Mapping[str, float]
    level: Mapping[str, float]
    change: Mapping[str, float]
    reached: Mapping[str, Mapping[str, Spent | None]]

    @property
    def processor_name(self) -> str:
        """Kind of processor: runs of another kind differ in the last digits, and so in the end."""
        return self.machine.partition(",")[0]

    @property
    def commit_state(self) -> CommitState:
        """The state of its commit."""
        return commit_state(self.commit)

    @property
    def diverged(self) -> bool:
        """Whether it ended because its training diverged."""
        return self.ended.endswith(DIVERGED)

    def value(self, kind: str, metric: str) -> float | None:
        """A value of a metric (`VALUES` of `offbeat_papers.study`); None where there is none."""
        if kind == "worst":
            return self.final.get(f"{CLIENTS}{metric.removeprefix(CLIENTS)}.{WORST}")
        values: Mapping[str, float] = getattr(self, kind)
        return values.get(metric)

    def cost(self, kind: str, metric: str, target: float) -> Cost | None:
        """A cost up to a target (`COSTS`). None means that the run did not measure this target."""
        measured = self.reached.get(metric, {})
        if (key := target_text(target)) not in measured:
            return Cost(float("inf"), False) if self.diverged and not measured else None
        found, place = measured[key], COSTS.index(kind)
        if found is None:
            spent = float("inf") if self.diverged else float(self.spent[metric][place])
            return Cost(spent, False)
        return Cost(float(found[place]), True)


@dataclass(frozen=True, slots=True)
class RunCurve:
    """A metric of a run over its virtual seconds, reduced to a few points."""

    digest: str
    metric: str
    seconds: tuple[float, ...]
    values: tuple[float, ...]


def target_text(target: float) -> str:
    """A target as it stands in rows."""
    return f"{target:.6g}"


class Results:
    """A folder of results, in which a run has a row for each kind of processor that it was made on.

    Args:
        folder: The folder; it is made when something is written.
        kind: The kind of processor whose rows are read. None means all kinds.
    """

    def __init__(self, folder: Path, kind: str | None = None) -> None:
        self.folder, self.kind = folder, kind
        self._read: dict[Path, tuple[tuple[int, ...], list[ResultRow]]] = {}

    def path(self, study: str) -> Path:
        """File of a study's rows."""
        return self.folder / f"{study.replace('/', '-')}.csv"

    def studies(self) -> list[str]:
        """Names of the studies that have rows, sorted; those of tuning too."""
        # A dataset has other tables too; their names have no dash.
        beside = (_CURVES, _LEVELS)
        files = (path for path in sorted(self.folder.glob("*-*.csv")) if not path.stem.endswith(beside))
        return [path.stem.replace("-", "/", 1) for path in files]

    def runs(self, study: str) -> Path:
        """Folder of a study's runs that are not finished, which git ignores."""
        return self.folder / ".runs" / study.replace("/", "-")

    def rows(self, study: str) -> dict[str, ResultRow]:
        """Rows of a study by digest, in the order of the file.

        Of several kinds of processor, a run has the row of the first kind; of several rows of that kind, the
        last one. A file is read again when it has changed.

        Raises:
            UsageError: The file has other columns, or a row that cannot be read.
        """
        found: dict[str, ResultRow] = {}
        for row in self._read_rows(study):
            if row.digest not in found or found[row.digest].processor_name == row.processor_name:
                found[row.digest] = row
        return found

    def rows_by_kind(self, study: str) -> dict[str, dict[str, ResultRow]]:
        """Rows of a study by kind of processor, in the order of the file, and by digest.

        Of several rows of a run on one kind, the last one counts. Errors: as of `rows`.
        """
        found: dict[str, dict[str, ResultRow]] = {}
        for row in self._read_rows(study):
            found.setdefault(row.processor_name, {})[row.digest] = row
        return found

    def all_rows(self, study: str) -> list[ResultRow]:
        """Each run's rows in the order of the file, one of each kind of processor. Errors: as of `rows`."""
        found = {(row.digest, row.processor_name): row for row in self._read_rows(study)}
        return [*found.values()]

    def _read_rows(self, study: str) -> list[ResultRow]:
        path = self.path(study)
        state = _state(path)
        read, rows = self._read.get(path, ((), []))
        if read != state:
            names = [field.name for field in fields(ResultRow)]
            rows = [_read_row(row, path, line) for line, row in _read(path, names)]
            self._read[path] = state, rows
        return [row for row in rows if self.kind in (None, row.processor_name)]

    def curves(self, study: str) -> dict[tuple[str, str], RunCurve]:
        """Curves of a study's runs by digest and metric; errors: as of `rows`."""
        path = _beside(self.path(study), _CURVES)
        rows = _read(path, [field.name for field in fields(RunCurve)])
        return {(row["digest"], row["metric"]): _read_curve(row, path, line) for line, row in rows}

    def levels(self, study: str) -> dict[tuple[str, str, str, str], RunLevels]:
        """Levels of a study's runs by digest, machine, metric and target; errors: as of `rows`."""
        path = _beside(self.path(study), _LEVELS)
        rows = _read(path, [field.name for field in fields(RunLevels)])
        found = [_read_levels(row, path, line) for line, row in rows]
        return {(each.digest, each.machine, each.metric, each.target): each for each in found}

    def append(self, row: ResultRow, curves: Sequence[RunCurve], levels: Sequence[RunLevels] = ()) -> None:
        """Append a run's row, curves and levels; durable on return. Raises `UsageError` as `rows` does."""
        path = self.path(row.study)
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._lock(row.study):
            # The row comes last: what has no row counts as none.
            _append(_beside(path, _CURVES), [_curve_cells(curve) for curve in curves])
            _append(_beside(path, _LEVELS), [_level_cells(each) for each in levels])
            _append(path, [_row_cells(row)])
        sync_directory(self.folder)

    def _lock(self, study: str) -> FileLock:
        return self.lock(study, "rows")

    def lock(self, study: str, name: str) -> FileLock:
        """A lock among processes, for something of a study."""
        runs = self.runs(study)
        runs.mkdir(parents=True, exist_ok=True)
        ignored = self.folder / ".runs" / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n")
        return FileLock(runs / f"{name}.lock", mode=file_mode(runs), thread_local=False)


def _state(path: Path) -> tuple[int, ...]:
    """A file's identity and time, which change with its contents; empty where the file is missing."""
    try:
        found = path.stat()
    except OSError:
        # Reading the file reports the error.
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _beside(path: Path, end: str) -> Path:
    return path.with_name(f"{path.stem}{end}.csv")


def _row_cells(row: ResultRow) -> dict[str, str]:
    return {name: _text(value) for name, value in asdict(row).items()}


def _curve_cells(curve: RunCurve) -> dict[str, str]:
    return {
        "digest": curve.digest,
        "metric": curve.metric,
        "seconds": " ".join(f"{t:.6g}" for t in curve.seconds),
        "values": " ".join(f"{value:.4g}" for value in curve.values),
    }


def _level_cells(levels: RunLevels) -> dict[str, str]:
    costs = json.dumps(_rounded(levels.costs), separators=(",", ":"))
    return {**asdict(levels), "costs": costs}


def _text(value: Any) -> str:
    """A cell: numbers with eight digits, mappings as JSON."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{_limited(value):.8g}"
    return json.dumps(_rounded(value), separators=(",", ":")) if isinstance(value, Mapping) else str(value)


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        # A metric that is no number, such as one of a loss that overflowed, has no value.
        return {key: _rounded(inner) for key, inner in value.items() if inner == inner}
    if isinstance(value, (list, tuple)):
        return [_rounded(inner) for inner in value]
    if not isinstance(value, float):
        return value
    value = _limited(value)
    return value if value.is_integer() else float(f"{value:.8g}")


def _limited(value: float) -> float:
    """The value as a row has it: beyond the limit, numbers of a run that diverges cannot be averaged."""
    return max(-_LARGEST, min(_LARGEST, value))


def _read_row(cells: Mapping[str, str], path: Path, line: int) -> ResultRow:
    made: dict[str, Any] = {}
    for field in fields(ResultRow):
        text = cells[field.name]
        try:
            if field.type is str:
                made[field.name] = text
            elif not text:
                made[field.name] = None
            else:
                made[field.name] = json.loads(text, parse_constant=_no_number)
                _check_numbers(made[field.name], least=-_LARGEST if field.name in VALUES else 0.0)
        except (ValueError, RecursionError):
            raise _unreadable(path, line, f"{field.name} = {text!r:.60}") from None
    row = ResultRow(**made)
    try:
        # Check that the values have the types of the fields.
        convert(made, ResultRow)
    except (ValidationError, RecursionError) as error:
        raise _unreadable(path, line, str(error)) from None
    return row


def _no_number(text: str) -> float:
    raise ValueError(text)


def _check_numbers(value: Any, least: float) -> None:
    """Raises `ValueError` for a number that no run gives: negative, infinite or absurdly large."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            _check_numbers(each, least)
    elif isinstance(value, float | int) and not least <= value <= _LARGEST:
        raise ValueError(value)


def _unreadable(path: Path, line: int, what: str) -> UsageError:
    return UsageError(f"{path}, line {line}: a row that cannot be read: {what}; delete the row")


def _read_curve(cells: Mapping[str, str], path: Path, line: int) -> RunCurve:
    try:
        seconds, values = (tuple(map(float, cells[name].split())) for name in ("seconds", "values"))
        _check_numbers([*seconds], least=0.0)
        _check_numbers([value for value in values if isfinite(value)], least=-_LARGEST)
    except ValueError as error:
        raise _unreadable(path, line, str(error)) from None
    if len(seconds) != len(values):
        raise _unreadable(path, line, f"{len(seconds)} seconds and {len(values)} values")
    return RunCurve(cells["digest"], cells["metric"], seconds, values)


def _read_levels(cells: Mapping[str, str], path: Path, line: int) -> RunLevels:
    try:
        costs = json.loads(cells["costs"], parse_constant=_no_number)
        _check_numbers([each for level in costs for each in level or ()], least=0.0)
        return convert({**cells, "costs": costs}, RunLevels)
    except (ValueError, TypeError, ValidationError, RecursionError):
        raise _unreadable(path, line, f"costs = {cells['costs']!r:.60}") from None


def _read(path: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """The rows of a file with the line at which each ends, without a last one that has no end."""
    try:
        text = read_text(path, _MOST_BYTES)
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {reason_of(error)}") from None
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    try:
        if text and list(reader.fieldnames or ()) != list(columns):
            raise UsageError(f"{path} has other columns than this version writes: move it away")
        rows = [(reader.line_num, _texts(row)) for row in reader]
    except csv.Error as error:
        raise UsageError(f"{path} cannot be read: line {reader.line_num + 1}: {error}") from None
    for line, row in rows:
        if None in row.values() or None in row:
            raise _unreadable(path, line, f"it has not {len(columns)} cells")
    return rows


def _texts(row: dict[str, str]) -> dict[str, str]:
    """A row as it was given; of one with more or fewer cells than columns, which is refused, as it is."""
    whole = None not in row and None not in row.values()
    return {name: text_of(cell) for name, cell in row.items()} if whole else row


def _append(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Append rows to a file, after its last whole line; the first time its head too."""
    if not rows:
        return
    old = path.read_bytes() if path.exists() else b""
    whole = old[: old.rfind(b"\n") + 1]
    text = csv_text([*([] if whole else [list(rows[0])]), *(list(row.values()) for row in rows)])
    with path.open("r+b" if path.exists() else "xb") as file:
        file.truncate(len(whole))
        file.seek(len(whole))
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
