"""Make the runs of studies that have no row yet; each one's row is written when it finishes."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from filelock import BaseFileLock, Timeout

from offbeat.allowed import NOTHING, Allow, Allowed
from offbeat.recipes.machine import check_devices
from offbeat.recipes.names import check_names, named_functions
from offbeat.recipes.run_pool import PlannedRun, RunProgress, run_planned
from offbeat.runs.record import read_run
from offbeat_papers.cells import Cell
from offbeat_papers.measure import (
    RunName,
    diverged_run,
    kind_here,
    measure_run,
    reduced_curves,
    run_levels,
)
from offbeat_papers.rows import ResultRow, Results
from offbeat_papers.study import COSTS, Study


def missing(cells: Sequence[Cell], results: Results) -> list[Cell]:
    """The cells without a row, each run once."""
    rows = {study: results.rows(study) for study in {cell.study.name for cell in cells}}
    new = {cell.digest: cell for cell in cells if cell.digest not in rows[cell.study.name]}
    return list(new.values())


def run_cells(
    cells: Sequence[Cell],
    results: Results,
    processes: int,
    watch: Callable[[RunProgress], None],
    allow: Allow = NOTHING,
) -> int:
    """Make the runs that have no row, several at a time.

    Other processes may do the same at the same time: a run that another one has begun is left to it. One that
    was interrupted is resumed from its checkpoint.

    Args:
        cells: The runs.
        results: Where their rows are.
        processes: Most runs at a time, each in a process.
        watch: Called with the reports of all runs.
        allow: What the studies' recipes may name.

    Returns:
        How many runs other processes are still making.

    Raises:
        NotAllowedError: A recipe names a function that is not allowed.
        UsageError: This machine does not have a device that a recipe trains on.
        RunError: A run failed, other than by training that diverges; the others have been finished first.
    """
    allowed, wanted = Allowed.of(allow), missing(cells, results)
    for cell in wanted:
        check_names(cell.recipe, allowed)
    for option, name in {found for cell in wanted for found in named_functions(cell.recipe)}:
        if ":" in name:
            # One that is not exposed, or not there, is told before the first run.
            allowed.load(name, option)
    check_devices(cell.recipe for cell in wanted)
    queue = _Queue(wanted, results, allowed)

    def watched(report: RunProgress) -> None:
        if report.finished:
            queue.finish(report)
        watch(report)

    try:
        run_planned(iter(queue), processes, watched, may_diverge=True)
    finally:
        queue.release()
    return queue.elsewhere


class _Queue:
    """The runs that this process takes, with a lock on each until its row is written."""

    def __init__(self, cells: Sequence[Cell], results: Results, allow: Allowed) -> None:
        self._cells, self._results, self._allow = cells, results, allow
        self._taken: dict[str, tuple[PlannedRun, Cell, BaseFileLock]] = {}
        self.elsewhere = 0

    def __iter__(self) -> Iterator[PlannedRun]:
        for cell in self._cells:
            lock = self._results.lock(cell.study.name, cell.digest)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                self.elsewhere += 1
                continue
            if not missing([cell], self._results):
                # Another process has made this run in the meantime.
                lock.release()
                continue
            directory = self._results.runs(cell.study.name) / unfinished_name(cell)
            label = f"{cell.study.name} {cell.size} {cell.column} {cell.label}"
            run = PlannedRun(cell.recipe, label, directory, allow=self._allow)
            self._taken[run.name] = run, cell, lock
            yield run

    def finish(self, report: RunProgress) -> None:
        """Write the row of a run that has ended or diverged, and delete its directory."""
        run, cell, lock = self._taken.pop(report.name)
        place = RunName(cell.study.name, cell.size, cell.column, cell.label, cell.seed, cell.digest)
        if report.error is not None and report.diverged:
            made_on = read_run(run.directory).processors
            self._results.append(diverged_run(place, report.error or "", report.processor, made_on), [])
            shutil.rmtree(run.directory)
        elif report.error is None:
            record = read_run(run.directory)
            targets = named_targets(cell)
            row = measure_run(place, record, targets, report.processor)
            curves = reduced_curves(cell.digest, record, cell.recipe.metric)
            self._results.append(row, curves, run_levels(row, record, targets, named_metrics(cell)))
            shutil.rmtree(run.directory)
        lock.release()

    def release(self) -> None:
        """Let other processes take the runs that have not ended."""
        for _, _, lock in self._taken.values():
            lock.release()


def unfinished_name(cell: Cell) -> str:
    """Name of the directory of a run until it has a row; a checkpoint is resumed on the device it is from."""
    device = cell.recipe.training.device
    return cell.digest if device == "cpu" else f"{cell.digest}-{device.replace(':', '-')}"


def named_targets(cell: Cell) -> set[float]:
    """The targets that a study names of a cell's column."""
    named = {cell.recipe.target, *(target_of(cell.study, item, cell) for item in cell.study.items)}
    return {target for target in named if target is not None}


def named_metrics(cell: Cell) -> set[str]:
    """The metrics of a study's items that ask for a cost: an own metric may be none of the known shares."""
    items = cell.study.items.values()
    asked = (i for i in items if i.shows in COSTS or any(claim.by in COSTS for claim in i.claims))
    return {metric for item in asked if (metric := item.metric or cell.recipe.metric) is not None}


def target_of(study: Study, item: str, cell: Cell) -> float | None:
    """Target of an item in a cell's column; None where the item has none."""
    given = study.items[item].target
    sized = study.sizes[cell.size].targets.get(cell.column, cell.recipe.target)
    if isinstance(given, Mapping):
        return given.get(cell.column, sized)
    return sized if given is None else given


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long runs will take.

    Attributes:
        runs: Number of runs to make.
        unknown: Of these, how many are like no run that has a row.
        elsewhere: Of these, how many are like runs on other kinds of processor only; 0 without `here`.
        processor: Processor seconds of all but the unknown ones.
    """

    runs: int
    unknown: int
    elsewhere: int
    processor: float


def estimate(todo: Sequence[Cell], results: Results, *, here: bool = False) -> Estimate:
    """Estimate runs by those of the same size, label and column or else any column.

    Args:
        todo: The runs to make, as `missing` gives them.
        results: Where the rows are.
        here: Whether this machine makes the runs: runs on its kind of processor count before others. What is
            estimated is else the same on every machine.
    """
    seconds: dict[tuple[str, ...], list[float]] = {}
    for study in {cell.study.name for cell in todo}:
        for row in results.rows(study).values():
            for key in _likeness(study, row, row.processor_name):
                if row.processor is not None:
                    seconds.setdefault(key, []).append(row.processor)
    known: list[tuple[bool, float]] = []
    for cell in todo:
        kind = kind_here(cell.recipe.training.device) if here else ""
        key = next((key for key in _likeness(cell.study.name, cell, kind) if key in seconds), ())
        if key:
            known.append((here and kind not in key, sum(seconds[key]) / len(seconds[key])))
    processor = sum(mean for _, mean in known)
    return Estimate(len(todo), len(todo) - len(known), sum(other for other, _ in known), processor)


def _likeness(study: str, run: Cell | ResultRow, kind: str) -> list[tuple[str, ...]]:
    """Keys of runs that take about the same time, the most alike first; the first ones have the kind."""
    columns = [(study, run.size, run.column, run.label), (study, run.size, run.label)]
    return [*((*key, kind) for key in columns), *columns]
