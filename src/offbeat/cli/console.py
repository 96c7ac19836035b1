"""Output of the command line: a run's progress, live on a terminal and else as plain lines; summaries."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import rich.progress
import rich.table
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from offbeat.core.errors import DivergedError
from offbeat.core.printable import printable
from offbeat.signals import raised_interrupts

if TYPE_CHECKING:
    from offbeat.recipes.run_pool import RunProgress
    from offbeat.runs.record import RunRecord
    from offbeat.sim.progress import Progress
    from offbeat.sim.result import Run

PLAIN_SECONDS = 10.0
# Most runs that are named of those that diverged.
_MOST_NAMED = 3
NOT_PRIVATE = (
    "noise from the seed: this model is not private; no cryptographer has reviewed this implementation"
)


class PlainConsole(Console):
    """A console on which a text cannot move the cursor, set a colour or change the window's title.

    A message has parts of recipes, records and sites. What Rich itself does with the terminal is no text.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render something, with the characters escaped that do not print."""
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else printable(segment.text, kept="\n\t")
            yield segment if shown == segment.text else segment._replace(text=shown)


out = PlainConsole(highlight=False, emoji=False, width=None if sys.stdout and sys.stdout.isatty() else 160)
err = PlainConsole(stderr=True, highlight=False, emoji=False)


class InterruptedByUserError(Exception):
    """The person has interrupted a command; the text says how the work goes on."""


@contextmanager
def resumable(directory: Path) -> Iterator[None]:
    """Turn an interruption of a run into one that names the command that continues the run."""
    try:
        with raised_interrupts():
            yield
    except KeyboardInterrupt:
        if not (directory / "run.db").exists():
            raise
        raise InterruptedByUserError(f"go on with: offbeat resume {quote(str(directory))}") from None


@contextmanager
def repeatable(directory: Path, option: str = "--out") -> Iterator[None]:
    """Turn an interruption into one that says that the same command continues the work in its directory."""
    try:
        with raised_interrupts():
            yield
    except KeyboardInterrupt:
        raise InterruptedByUserError(
            f"the same command with {option} {quote(str(directory))} goes on"
        ) from None


def describe(progress: "Progress") -> str:
    """A run's progress in one line."""
    from offbeat.core.metric_names import first_shown
    from offbeat.core.privacy.privacy_options import privacy_text
    from offbeat.units import duration_text

    parts = [
        f"t={progress.seconds:,.1f}s",
        f"version {progress.version}",
        f"{progress.tasks} tasks",
        f"staleness {progress.mean_staleness:.2f}",
        f"{progress.tasks_per_second:,.0f} tasks/s",
    ]
    if progress.metrics:
        name = first_shown(progress.metrics)
        parts.insert(2, metric_text(name, progress.metrics[name]))
    if progress.privacy is not None:
        parts.append(privacy_text(progress.privacy))
    if progress.left is not None:
        parts.append(f"{duration_text(round(progress.left))} left")
    if progress.done is not None:
        parts.append(f"{100 * progress.done:.0f} %")
    return "  ".join(parts)


class RunWatcher:
    """Shows the progress of one run: a live line, or a plain line every 10 seconds."""

    def __init__(self, live: rich.progress.Progress) -> None:
        self._live, self._line = live, live.add_task("")
        self._printed = time.monotonic()

    def __call__(self, progress: "Progress") -> None:
        """Show where the run is."""
        self._live.update(self._line, description=describe(progress))
        if self._live.disable and time.monotonic() - self._printed > PLAIN_SECONDS:
            self._printed = time.monotonic()
            err.print(describe(progress), soft_wrap=True)


class CompareWatcher:
    """Shows the runs of a comparison: live lines, and a plain line for each run that is over."""

    def __init__(self, live: rich.progress.Progress, total: int) -> None:
        self._live, self._total = live, total
        self._over = 0
        self._began = time.monotonic()
        self._lines: dict[str, rich.progress.TaskID] = {}
        self._done: dict[str, float] = {}
        self._all = live.add_task(f"0 of {total} runs")

    def __call__(self, report: "RunProgress") -> None:
        """Take in a report of one run."""
        if report.name not in self._lines:
            self._lines[report.name] = self._live.add_task(report.name)
        if report.finished:
            self._over += 1
            self._done.pop(report.name, None)
            self._live.remove_task(self._lines.pop(report.name))
            state = "diverged" if report.diverged else "failed" if report.error else "done"
            err.print(f"[{self._over}/{self._total}] {report.name}: {state}{self._left()}", markup=False)
        elif report.progress is not None:
            self._done[report.name] = report.progress.done or 0.0
            text = f"{report.name}  {describe(report.progress)}"
            self._live.update(self._lines[report.name], description=text)
        self._live.update(self._all, description=f"{self._over} of {self._total} runs{self._left()}")

    def _left(self) -> str:
        from offbeat.units import duration_text

        spent = time.monotonic() - self._began
        started = sum(self._done.values()) + self._over
        if not started or self._over == self._total:
            return ""
        return f", about {duration_text(round(spent * (self._total - started) / started))} left"


def live_progress() -> rich.progress.Progress:
    """Lines that are updated in place on a terminal; disabled without one."""
    return rich.progress.Progress(
        "{task.description}", console=err, transient=True, disable=not sys.stderr.isatty()
    )


def show_run(run: "Run", hint: str, as_json: bool = False) -> None:
    """Print a finished run in a few lines, with its directory and a next command; or as JSON.

    Raises:
        DivergedError: The guard has ended it, because its training diverged.
    """
    if as_json:
        print_json({"directory": str(run.path), "stop_reason": run.stop_reason, "summary": run.summary})
    else:
        for line in _summary_lines(run):
            out.print(line, markup=False)
        out.print(f"written to {run.path}; {hint}", markup=False)
    check_diverged(run)


def check_diverged(*runs: "Run | RunRecord") -> None:
    """Raises `DivergedError` where the training of a run has diverged; it names the first ones, and why."""
    found = [run for run in runs if run.diverged]
    if found:
        told = [f"{run.label}, seed {run.seed}: {run.stop_reason}" for run in found[:_MOST_NAMED]]
        more = [f"and {len(found) - _MOST_NAMED} more runs"] if len(found) > _MOST_NAMED else []
        if not any("learning rate" in each for each in told):
            more.append("give a smaller learning rate, or a clip_norm")
        raise DivergedError("; ".join([*told, *more]))


def see_with(directory: Path | str) -> str:
    """The command that shows what a run has made."""
    return f"see it with: offbeat report {quote(str(directory))}"


def _summary_lines(run: "Run") -> Iterator[str]:
    from offbeat.units import size_text

    summary = run.summary
    yield f"stopped: {run.stop_reason}"
    yield (
        f"virtual time {summary.seconds:,.1f} s, {summary.versions} versions, {summary.tasks} client tasks, "
        f"mean staleness {summary.mean_staleness:.2f}"
    )
    yield from _metric_lines(summary.metrics, summary.best_metrics)
    yield (
        f"of {summary.dispatched} tasks: {summary.aggregated} aggregated, {summary.dropped} dropped, "
        f"{summary.lost} lost, {summary.held} waiting, {summary.running} in training"
    )
    if summary.privacy is not None:
        from offbeat.core.privacy.privacy_options import privacy_text

        yield privacy_text(summary.privacy)
        yield NOT_PRIVATE
    yield f"sent up {size_text(summary.bytes_up)}, down {size_text(summary.bytes_down)}"
    if summary.client_state_bytes or summary.server_state_bytes:
        clients, server = size_text(summary.client_state_bytes), size_text(summary.server_state_bytes)
        yield f"clients keep {clients}, the server {server}"


def _metric_lines(metrics: Mapping[str, float], best: Mapping[str, float]) -> Iterator[str]:
    """A line for each metric, with the loss on the first; without the quantiles over clients."""
    from offbeat.core.metric_names import in_order

    loss = [metric_text("loss", metrics["loss"])] if "loss" in metrics else []
    names = [name for name in in_order(metrics) if name != "loss" and name.count(".") < 2]
    for i, name in enumerate(names):
        ends = f"{metric_text(name, metrics[name])} at the end"
        shown = [ends, f"{best[name]:.4f} at best"] if name in best else [ends]
        yield ", ".join(shown + (loss if i == 0 else []))
    if not names:
        yield from loss


def metric_text(name: str, value: float) -> str:
    """A metric with its value: "balanced accuracy 0.8125"."""
    return f"{name.replace('_', ' ')} {value:.4f}"


def print_json(value: object) -> None:
    """Print a value as JSON: mappings, dataclasses and structs are objects; NaN and infinity are null."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    out.print(text, markup=False, soft_wrap=True)


def plain_table(*heads: str) -> rich.table.Table:
    """A table without lines, whose cells break into lines where it is narrow."""
    return rich.table.Table(*heads, box=None, padding=(0, 2, 0, 0))


def add_row(table: rich.table.Table, *cells: str) -> None:
    """Add a row of plain text, in which brackets mean nothing."""
    table.add_row(*map(Text, cells))
