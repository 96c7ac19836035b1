"""The command that repeats tables and figures of papers and says which of their claims hold."""

from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli import executor_options
from offbeat.cli.allow import AllowOption, allowed_names, recipe_folder
from offbeat.cli.common_options import file_option, names_of
from offbeat.cli.console import CompareWatcher, add_row, err, live_progress, out, plain_table, repeatable
from offbeat.core.errors import UsageError, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from offbeat.allowed import Allowed
    from offbeat_papers.cells import Cell
    from offbeat_papers.judge import JudgedItem
    from offbeat_papers.rows import Results
    from offbeat_papers.study import Size, Study
    from offbeat_papers.texts import Grid

    Further = Callable[[JudgedItem, list[Cell]], list[Cell]]

_WIDTH = 160


def reproduce(
    items: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ITEM]...",
            help="paper/item, a paper, STUDY.yaml:item, or all; without one: print a list",
        ),
    ] = None,
    scale: Annotated[str, typer.Option(help="size of the runs: paper, laptop or seconds")] = "laptop",
    columns: Annotated[
        list[str] | None, typer.Option(metavar="A,B,C", help="columns to run; may be repeated")
    ] = None,
    labels: Annotated[
        list[str] | None, typer.Option(metavar="A,B,C", help="labels to run; may be repeated")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="number of seeds; default: the study's")] = None,
    undecided: Annotated[
        bool,
        typer.Option("--undecided", help="run only undecided claims, up to their next number of seeds"),
    ] = False,
    unpaired: Annotated[
        bool,
        typer.Option(
            "--unpaired",
            help="run again on this machine what a claim leaves out, because its runs are of different kinds "
            "of processor",
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(help="train on cpu, cuda, cuda:N or mps; default: the device that the size names"),
    ] = None,
    workers: Annotated[
        str, typer.Option("--workers", help="number of simultaneous runs, each a process, or auto")
    ] = "auto",
    results: Annotated[Path | None, typer.Option(metavar="DIR", help="folder of the rows of results")] = None,
    show: Annotated[bool, typer.Option("--show", help="run nothing; show the existing rows")] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="write each item as Markdown, with its figure")
    ] = None,
    page: Annotated[
        Path | None,
        file_option("write the page of all verdicts, and a page per paper into a folder with its name"),
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="write the rows as a dataset: CSV, Parquet, a schema, all figures"),
    ] = None,
    allow: AllowOption = None,
) -> None:
    """Repeat tables and figures of papers.

    The same call continues, also from another checkout's rows.
    """
    from offbeat_papers.folder import default_results
    from offbeat_papers.rows import Results

    place = default_results() if results is None else Results(results)
    of_runs = {
        "--columns": columns, "--labels": labels, "--seeds": seeds, "--undecided": undecided,
        "--unpaired": unpaired, "--device": device, "--show": show, "--report": report,
    }  # fmt: skip
    if not items and (given := next((option for option, value in of_runs.items() if value), None)):
        raise UsageError(f"{given} needs an item: give one, a paper, or all")
    if items:
        found, size = _find(items), _size(scale)
        found = {name: item for name, item in found.items() if size in item[0].sizes or len(found) == 1}
        chosen = [*(found if show else _worth_running(found, size, named=items)).values()]
        further = _further(undecided, unpaired)
        cells = _cells(chosen, size, place, names_of(columns or ()), names_of(labels or ()), seeds, further)
        cells = cells if device is None or show else _on_device(cells, device)
        processes = 0 if show else executor_options.count_of("--workers", workers)
        folders = [recipe_folder(name.rpartition(":")[0]) for name in items]
        rows = _rows_here(place, cells) if unpaired else place
        elsewhere = _run_all(chosen, size, cells, rows, processes, allowed_names(allow, folders))
        _print_items(chosen, size, place, report)
        if elsewhere:
            out.print(f"{elsewhere} more runs are being made by other processes")
        out.print(f"rows in {place.folder}", markup=False, soft_wrap=True)
    elif page is None and dataset is None:
        _list(place)
    if page is not None:
        from offbeat_papers.page import write_pages

        _write_all(page, lambda: write_pages(place, page))
    if dataset is not None:
        from offbeat_papers.dataset import write_dataset

        _write_all(dataset, lambda: write_dataset(place, dataset))


def _on_device(cells: "list[Cell]", device: str) -> "list[Cell]":
    """The runs, trained on a device that this machine has."""
    from offbeat.recipes.machine import check_devices

    moved = [cell.on(device) for cell in cells]
    check_devices((cell.recipe for cell in moved), "--device")
    return moved


def _size(scale: str) -> "Size":
    from offbeat.core.validation import did_you_mean
    from offbeat_papers.study import SIZES

    found: Size | None = next((size for size in SIZES if size == scale), None)
    if found is not None:
        return found
    raise UsageError(f"--scale {scale} is unknown{did_you_mean(scale, SIZES)}")


def _worth_running(
    found: "dict[str, tuple[Study, str]]", size: "Size", named: list[str]
) -> "dict[str, tuple[Study, str]]":
    """The items without those whose size takes days or lacks data, unless they are named themselves."""
    left = {
        name: reason
        for name, (study, _) in found.items()
        if name not in named and size in study.sizes and (reason := study.sizes[size].not_here)
    }
    for reason in dict.fromkeys(left.values()):
        names = ", ".join(name for name, own in left.items() if own == reason)
        err.print(f"left out at {size}: {names} ({reason}); name one to run it", markup=False, soft_wrap=True)
    return {name: item for name, item in found.items() if name not in left}


def _find(names: list[str]) -> "dict[str, tuple[Study, str]]":
    """Study and item of each name; of a paper all items, and of an experiment in parts all parts."""
    from offbeat_papers.load import all_items, find_item, items_of, parts_of

    items: dict[str, tuple[Study, str]] = {}
    for name in names:
        if name == "all":
            items |= all_items()
        elif "/" not in name and ":" not in name and (of_paper := items_of(name)):
            items |= of_paper
        elif name not in items_of(name) and (parts := parts_of(name)):
            items |= parts
        else:
            items[name] = find_item(name)
    return items


def _cells(
    items: "list[tuple[Study, str]]",
    size: "Size",
    results: "Results",
    columns: list[str],
    labels: list[str],
    seeds: int | None,
    further: "Further | None",
) -> "list[Cell]":
    """The runs that are asked for."""
    from offbeat.verdicts.multiplicity import LOOKS
    from offbeat_papers.arm_rows import item_cells

    if further is not None and seeds is None:
        seeds = max(LOOKS)
    cells = []
    judged = _Judged(size, results)
    for study, item in items:
        asked = item_cells(study, item, size, columns=columns or None, labels=labels or None, seeds=seeds)
        cells += asked if further is None else further(judged.item(study, item), asked)
    return cells


def _further(undecided: bool, unpaired: bool) -> "Further | None":
    """What chooses the runs that the claims of an item still need; None means all runs of the item."""
    from offbeat_papers.judge import undecided_cells, unpaired_cells

    if undecided and unpaired:
        raise UsageError("--unpaired and --undecided are not allowed together: give one after the other")
    if undecided:
        return undecided_cells
    return unpaired_cells if unpaired else None


def _rows_here(results: "Results", cells: "list[Cell]") -> "Results":
    """The rows that were made on this machine's kind of processor, with its GPU if the runs train on it."""
    from offbeat_papers.measure import kind_here
    from offbeat_papers.rows import Results

    kinds = {kind_here(cell.recipe.training.device) for cell in cells}
    if len(kinds) > 1:
        raise UsageError("--unpaired is not allowed for runs on a GPU together with others: name fewer items")
    return Results(results.folder, kinds.pop() if kinds else None)


class _Judged:
    """Items at a size, each judged with all of its paper."""

    def __init__(self, size: "Size", results: "Results") -> None:
        self._size, self._results = size, results
        self._items: dict[tuple[str, str], JudgedItem] = {}

    def item(self, study: "Study", item: str) -> "JudgedItem":
        from offbeat_papers.family import judge_paper

        if (study.name, item) not in self._items:
            self._items.update(judge_paper(study, self._size, self._results))
        return self._items[study.name, item]


def _run_all(
    chosen: "list[tuple[Study, str]]",
    size: "Size",
    cells: "list[Cell]",
    results: "Results",
    processes: int,
    allowed: "Allowed",
) -> int:
    """Make the runs without a row; returns how many others are making."""
    for study in {study.name: study for study, _ in chosen}.values():
        if processes and study.sizes[size].not_here:
            err.print(f"{study.name} at {size}: {study.sizes[size].not_here}", markup=False, soft_wrap=True)
    return _run(cells, results, processes, allowed) if processes else 0


def _print_items(
    chosen: "list[tuple[Study, str]]", size: "Size", results: "Results", report: Path | None
) -> None:
    family = _Judged(size, results)
    for study, item in chosen:
        judged = family.item(study, item)
        _print_item(judged)
        if report is not None:
            _write_item(judged, results, report)


def _run(cells: "list[Cell]", results: "Results", processes: int, allowed: "Allowed") -> int:
    """Make the runs without a row; returns how many others are making."""
    from offbeat.recipes.machine import check_devices
    from offbeat.units import duration_text
    from offbeat_papers.rows import Results
    from offbeat_papers.run import estimate, missing, run_cells

    todo = missing(cells, results)
    _check_writable(results.folder, bool(todo))
    check_devices((cell.recipe for cell in todo), "--device (else the size's training.device)")
    expected = estimate(todo, Results(results.folder), here=True)
    if not expected.runs:
        return 0
    known = expected.runs - expected.unknown
    costs = (
        f"about {duration_text(expected.processor / min(processes, known))} for {known} of them"
        if known
        else ""
    )
    if expected.elsewhere:
        costs += f" (for {expected.elsewhere} by runs on other kinds of processor)"
    unknown = f"{expected.unknown} of unknown cost" if expected.unknown else ""
    err.print(
        f"{expected.runs} runs to make, {processes} at a time, into {results.folder}: "
        f"{', '.join(filter(None, [costs, unknown]))}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    with repeatable(results.folder, "--results"), live_progress() as progress:
        return run_cells(cells, results, processes, CompareWatcher(progress, expected.runs), allowed)


def _check_writable(folder: Path, wanted: bool) -> None:
    """Refuse a folder of results in which rows cannot be written, before any run."""
    if not wanted:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--results {folder} cannot be written: {reason_of(error)}") from None


def _print_item(judged: "JudgedItem") -> None:
    from offbeat_papers.texts import claim_grid, item_grid, rows_text, what_is_shown

    rows = judged.rows
    out.print(f"{rows.full_name}: {rows.item.title}", markup=False, soft_wrap=True)
    out.print(f"{what_is_shown(rows)}; {rows_text(rows)}", markup=False, soft_wrap=True)
    _print_grid(item_grid(rows))
    if judged.claims:
        _print_grid(claim_grid(judged))


def _print_grid(grid: "Grid") -> None:
    table = plain_table(*grid[0])
    for row in grid[1:]:
        add_row(table, *row)
    out.print(table, width=max(out.width, _WIDTH), crop=False, soft_wrap=False)
    out.print("")


def _write_item(judged: "JudgedItem", results: "Results", folder: Path) -> None:
    from offbeat_papers.figure import write_figure
    from offbeat_papers.texts import item_markdown

    name = judged.rows.full_name.replace("/", "-")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figure = write_figure(judged.rows, results, folder / f"{name}.png")
    except OSError as error:
        raise UsageError(f"--report {folder} cannot be written: {reason_of(error)}") from None
    _write(folder / f"{name}.md", item_markdown(judged, None if figure is None else figure.name))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {reason_of(error)}") from None
    out.print(f"wrote {path}", markup=False, soft_wrap=True)


def _write_all(path: Path, write: "Callable[[], Iterable[Path]]") -> None:
    """Write files, and say which."""
    try:
        for each in write():
            out.print(f"wrote {each}", markup=False, soft_wrap=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {reason_of(error)}") from None


def _list(results: "Results") -> None:
    """Print every item with the runs there are of it at each size, and its latest verdict."""
    from offbeat_papers.load import all_items
    from offbeat_papers.study import SIZES

    table = plain_table("item", "title", "runs made", "verdict")
    families = {size: _Judged(size, results) for size in SIZES}
    for name, (study, item) in all_items().items():
        judged = [families[size].item(study, item) for size in study.sizes]
        made = [f"{j.rows.size} {j.rows.made_as_planned}/{j.rows.planned}" for j in judged]
        verdict = next((j.verdict for j in judged if j.rows.made), judged[0].verdict)
        add_row(table, name, study.items[item].title, ", ".join(made), verdict)
    out.print(table, width=max(out.width, _WIDTH), crop=False, soft_wrap=False)
    out.print(f"rows in {results.folder}", markup=False, soft_wrap=True)
