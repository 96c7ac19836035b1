"""Evaluations as a table: one CSV file for each run."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from offbeat.callbacks.callback import LiveRun
from offbeat.callbacks.tracker import Ending, RunTracker, folder_name, no_directory, values
from offbeat.core.validation import checked_dataclass
from offbeat.documents import user_path
from offbeat.runs.csv_text import csv_text
from offbeat.runs.own_files import open_own, write_own
from offbeat.runs.schema import Metric

FILE = "metrics.csv"
_LINE_END = "\r\n"
COLUMNS = ("version", "t", "tasks", "bytes_up", "bytes_down")


@checked_dataclass
class CSVTracker(RunTracker):
    """One row for each evaluation: version, time `t` in seconds of the run's clock, tasks, bytes, metrics.

    An undefined metric is "nan", and a metric that was not measured is empty. A resumed run rewrites the
    file from the records in its directory, so each evaluation has one row.

    Attributes:
        path: The file, in which "{label}" and "{seed}" are replaced by those of the run. None means
            metrics.csv in the run's directory.
    """

    path: Path | None = None

    def open(self, run: LiveRun) -> "CSVFile":
        if self.path is None:
            if run.directory is None:
                raise no_directory("path")
            return CSVFile(run.directory / FILE, run.past)
        named = str(self.path).replace("{label}", folder_name(run)).replace("{seed}", str(run.seed))
        return CSVFile(user_path(named), run.past)


class CSVFile:
    """A table that is complete after each evaluation.

    Args:
        path: The file, which is replaced.
        past: Evaluations that it has from the start.
    """

    def __init__(self, path: Path, past: Iterable[Metric]) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = []
        self._columns = dict.fromkeys(COLUMNS)
        path.parent.mkdir(parents=True, exist_ok=True)
        for metrics in past:
            self._add(metrics)
        self._write()

    def log(self, metrics: Metric) -> None:
        """Append a row; write the table again where it has a new column."""
        columns = len(self._columns)
        row = self._add(metrics)
        if len(self._columns) > columns:
            self._write()
        else:
            with os.fdopen(open_own(self._path), "a", encoding="utf-8", newline="") as file:
                file.write(csv_text([self._cells(row)], _LINE_END))

    def end(self, ending: Ending) -> None:
        """The table is complete."""

    def _add(self, metrics: Metric) -> dict[str, Any]:
        row = {name: getattr(metrics, name) for name in COLUMNS} | values(metrics)
        self._columns |= dict.fromkeys(row)
        self._rows.append(row)
        return row

    def _write(self) -> None:
        """Replace the file by the table, at once."""
        write_own(self._path, csv_text([[*self._columns], *map(self._cells, self._rows)], _LINE_END))

    def _cells(self, row: Mapping[str, Any]) -> list[Any]:
        return [row.get(name, "") for name in self._columns]
