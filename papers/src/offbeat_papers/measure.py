"""A run's row and curves, measured from its directory."""

import os
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from offbeat import version
from offbeat.core.metric_names import (
    WORST,
    NamedMetric,
    finite,
    first_shown,
    is_statistic,
)
from offbeat.report.records import Rows, recorded_metrics
from offbeat.runs.processor import gpu_name, processor_name
from offbeat.runs.record import RunRecord
from offbeat_papers.levels import RunLevels, level_costs
from offbeat_papers.rows import DIVERGED, ResultRow, RunCurve, Spent, target_text

CURVE_POINTS = 60
LAST = 0.2
"""The share of a run's time, its last part, over which levels and changes are measured."""
LADDER = tuple(k / 20 for k in range(1, 20))
"""Targets that are measured of every share, besides those that a study names."""


@dataclass(frozen=True, slots=True)
class RunName:
    """The place of a run: the first columns of its row."""

    study: str
    size: str
    column: str
    label: str
    seed: int
    digest: str


def measure_run(
    name: RunName, record: RunRecord, targets: Collection[float], processor: float | None
) -> ResultRow:
    """Measure a finished run.

    Args:
        name: Where it belongs.
        record: The run.
        targets: Targets beside the ladder's that its metrics are measured to.
        processor: Processor seconds that it took. None means unknown.
    """
    summary, evaluated = record.summary, record.metrics
    if summary is None:
        raise ValueError(f"{record.path} has not finished")
    series = {measure: _defined(evaluated, measure.name) for measure in _measures(record, evaluated)}
    since = (1 - LAST) * summary.seconds
    late = {m.name: [row[m.name] for row in rows if row["t"] >= since] for m, rows in series.items()}
    return ResultRow(
        name.study, name.size, name.column, name.label, name.seed, name.digest,
        version.__version__, commit(), machine(record.processors),
        summary.seconds, processor, summary.versions, summary.tasks, summary.bytes_up, summary.bytes_down,
        record.stop_reason or "",
        spent={m.name: _spent(rows[-1:]) or (0.0, 0, 0, 0) for m, rows in series.items()},
        best={m.name: v for m, rows in series.items() if (v := m.best(r[m.name] for r in rows)) is not None},
        final={m.name: rows[-1][m.name] for m, rows in series.items() if rows},
        level={metric: float(np.mean(values)) for metric, values in late.items() if values},
        change={
            metric: float(np.mean([abs(b - a) for a, b in pairwise(values)]))
            for metric, values in late.items() if len(values) > 1
        },
        reached={
            m.name: {
                target_text(target): _spent([row for row in rows if m.reaches(row[m.name], target)])
                for target in sorted({*targets, *(LADDER if m.is_share else ())})
            }
            for m, rows in series.items() if not is_statistic(m.name)
        },
    )  # fmt: skip


def run_levels(
    row: ResultRow, record: RunRecord, targets: Collection[float], named: Collection[str] = ()
) -> list[RunLevels]:
    """The costs of a run at the levels on the way to each target, for its shares and the named metrics.

    Args:
        row: The run's row.
        record: The run.
        targets: The targets.
        named: Metrics to which a study measures costs, besides the shares.
    """
    evaluated = record.metrics
    shares = [
        m for m in _measures(record, evaluated)
        if m.name in named or (m.is_share and not is_statistic(m.name))
    ]  # fmt: skip
    return [
        RunLevels(row.digest, row.machine, measure.name, target_text(target), costs)
        for measure in shares
        for target in sorted(targets)
        for costs in [level_costs(_defined(evaluated, measure.name), measure, target)]
    ]


def diverged_run(
    name: RunName, why: str, processor: float | None, processors: Sequence[str] = ()
) -> ResultRow:
    """The row of a run whose training has diverged: that it has, and nothing that was measured before.

    Args:
        name: Where it belongs.
        why: The error that ended it.
        processor: Processor seconds that it took. None means unknown.
        processors: As of `machine`.
    """
    ended = f"{why.partition(DIVERGED)[0]}{DIVERGED}"
    return ResultRow(
        name.study, name.size, name.column, name.label, name.seed, name.digest,
        version.__version__, commit(), machine(processors), 0.0, processor, 0, 0, 0, 0, ended,
        spent={}, best={}, final={}, level={}, change={}, reached={},
    )  # fmt: skip


def reduced_curves(digest: str, record: RunRecord, metric: str | None) -> list[RunCurve]:
    """The metric of a run and its loss over virtual time, of at most `CURVE_POINTS` evaluations each.

    Args:
        digest: Digest of the run.
        record: The run.
        metric: The metric. None means the first that is shown.
    """
    evaluated, curves = record.metrics, []
    names = recorded_metrics({"": [evaluated]})
    for name in dict.fromkeys([metric or first_shown(names), "loss"]):
        rows = _defined(evaluated, name)
        places = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), CURVE_POINTS)).round().astype(int))
        chosen = [rows[place] for place in places] if rows else []
        if chosen:
            points = tuple(row["t"] for row in chosen), tuple(row[name] for row in chosen)
            curves.append(RunCurve(digest, name, *points))
    return curves


def _measures(record: RunRecord, evaluated: Rows) -> list[NamedMetric]:
    """The metrics of a run, without quantiles over clients."""
    names = recorded_metrics({"": [evaluated]})
    known = record.higher_is_better
    kept = (name for name in names if not is_statistic(name) or name.endswith(f".{WORST}"))
    return [NamedMetric.of(name, known) for name in kept]


def _defined(evaluated: Rows, metric: str) -> Rows:
    return [row for row in evaluated if finite(row.get(metric)) is not None]


def _spent(rows: Rows) -> Spent | None:
    """The costs at the first of some evaluations; None without any."""
    for row in rows:
        traffic = (row["bytes_up"] or 0) + (row["bytes_down"] or 0)
        return float(row["t"]), row["version"], row["tasks"], traffic
    return None


def machine(processors: Sequence[str] = ()) -> str:
    """Kind of processor, number of cores, and PyTorch's version.

    Args:
        processors: The kinds that a run was made on. Empty means this machine's.
    """
    kind = kind_of(processors or [processor_name()])
    return f"{kind}, {os.cpu_count()} cores, PyTorch {torch.__version__}"


def kind_of(processors: Sequence[str]) -> str:
    """The kind of processor of a row, from the kinds that made its run: `ResultRow.processor_name`."""
    return " and ".join(processors).replace(",", " ")


@cache
def kind_here(device: str) -> str:
    """The kind of processor that a row gets of a run that this machine trains on a device."""
    return kind_of([processor_name(), *filter(None, [gpu_name(device)])])


@cache
def checkout() -> Path | None:
    """The checkout that this package and Offbeat are in; None where one of them is installed."""
    root = Path(__file__).parents[3]
    ours = Path(version.__file__).is_relative_to(root / "src")
    return root if ours and (root / ".git").exists() and (root / "pyproject.toml").is_file() else None


@cache
def commit() -> str:
    """Commit of the checkout, with "-dirty" if files of the packages are not as in it; else "unknown"."""
    root = checkout()
    if root is None:
        return "unknown"
    found = _git(root, ["rev-parse", "--short=12", "HEAD"])
    if not found:
        return "unknown"
    return f"{found}-dirty" if _git(root, ["status", "--porcelain", "--", "src", "papers/src"]) else found


def _git(root: Path, words: Sequence[str]) -> str:
    """The output of git; empty where git is missing."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
