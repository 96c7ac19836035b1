"""What the command line shows while it works: a live line on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from offbeat.recipes.compare import RunProgress
from offbeat.runs.summary import Summary
from offbeat.sim.progress import Progress

PLAIN_SECONDS = 10.0

out = Console(highlight=False, width=None if sys.stdout and sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False)


def describe(progress: Progress) -> str:
    """A run's progress in one line."""
    parts = [
        f"t={progress.seconds:,.1f}s",
        f"version {progress.version}",
        f"{progress.tasks} tasks",
        f"staleness {progress.mean_staleness:.2f}",
        f"{progress.tasks_per_second:,.0f} tasks/s",
    ]
    if progress.accuracy is not None:
        parts.insert(2, f"accuracy {progress.accuracy:.4f}")
    if progress.left is not None:
        parts.append(f"{duration(progress.left)} left")
    if progress.done is not None:
        parts.append(f"{100 * progress.done:.0f} %")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 60:
        return f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


class RunWatcher:
    """Shows one run."""

    def __init__(self, live: Live | None) -> None:
        self._live = live
        self._shown = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Show where the run is."""
        if self._live is not None:
            self._live.update(describe(progress))
        elif time.monotonic() - self._shown > PLAIN_SECONDS:
            self._shown = time.monotonic()
            err.print(describe(progress), soft_wrap=True)


class CompareWatcher:
    """Shows the runs of a comparison."""

    def __init__(self, live: Live | None, total: int) -> None:
        self._live, self._total = live, total
        self._over = 0
        self._began = time.monotonic()
        self._running: dict[str, Progress | None] = {}

    def __call__(self, report: RunProgress) -> None:
        """Take in one run's news."""
        if report.over:
            self._over += 1
            self._running.pop(report.job, None)
            state = "failed" if report.error else "done"
            err.print(f"[{self._over}/{self._total}] {report.job}: {state}{self._left()}", markup=False)
        else:
            self._running[report.job] = report.progress
        if self._live is not None:
            self._live.update(self._table())

    def _left(self) -> str:
        spent = time.monotonic() - self._began
        started = sum(p.done or 0.0 for p in self._running.values() if p) + self._over
        if not started or self._over == self._total:
            return ""
        return f", about {duration(spent * (self._total - started) / started)} left"

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for job, progress in sorted(self._running.items()):
            table.add_row(job, describe(progress) if progress else "")
        table.add_row("all", f"{self._over} of {self._total} runs{self._left()}")
        return table


@contextmanager
def live_display() -> Iterator[Live | None]:
    """A live display on a terminal; None where there is none."""
    if not sys.stderr.isatty():
        yield None
        return
    with Live("", console=err, refresh_per_second=8, transient=True) as live:
        yield live


def summary_lines(summary: Summary, stop_reason: str) -> Iterator[str]:
    """A finished run in a few lines."""
    yield f"stopped: {stop_reason}"
    yield (
        f"virtual time {summary.seconds:,.1f} s, {summary.versions} versions, {summary.tasks} client tasks, "
        f"mean staleness {summary.mean_staleness:.2f}"
    )
    if summary.accuracy is not None:
        loss = f", loss {summary.loss:.4f}" if summary.loss is not None else ""
        yield f"accuracy {summary.accuracy:.4f} at the end, {summary.best_accuracy:.4f} at best{loss}"
    yield (
        f"of {summary.dispatched} tasks: {summary.aggregated} aggregated, {summary.dropped} dropped, "
        f"{summary.lost} lost, {summary.held} waiting, {summary.running} in training"
    )
    yield f"sent up {summary.bytes_up / 1e6:,.1f} MB, down {summary.bytes_down / 1e6:,.1f} MB"
    if summary.client_state_bytes or summary.server_state_bytes:
        clients, server = size_text(summary.client_state_bytes), size_text(summary.server_state_bytes)
        yield f"clients keep {clients}, the server {server}"


def size_text(count: int) -> str:
    """Bytes for people."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
