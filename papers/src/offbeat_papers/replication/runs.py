"""The runs of the second study: all arms of a column and seed on one kind of processor."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from offbeat.recipes.run_pool import RunProgress
from offbeat_papers.cells import Cell
from offbeat_papers.measure import kind_here
from offbeat_papers.replication.design import fresh_cells, load_design
from offbeat_papers.rows import Results
from offbeat_papers.run import run_cells


def all_cells(studies: Sequence[str] = ()) -> Iterator[Cell]:
    """The runs of the design in the order in which they are made.

    Args:
        studies: Names of the studies. Empty means all.
    """
    for name in load_design().studies:
        if not studies or name in studies:
            yield from fresh_cells(name)


def open_cells(cells: Sequence[Cell], results: Results) -> list[Cell]:
    """The runs that this machine has to make, in order.

    The runs of a column and seed are a block. A block that is complete on some kind of processor is done. A
    block that was begun on another kind is made anew on this one.

    Args:
        cells: The runs of the design.
        results: Rows of all kinds of processor.
    """
    blocks: defaultdict[tuple[str, str, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        blocks[cell.study.name, cell.column, cell.seed].append(cell)
    kinds = {name: results.rows_by_kind(name) for name in {cell.study.name for cell in cells}}
    here, found = kind_here("cpu"), list[Cell]()
    for (study, _, _), block in blocks.items():
        made = [sum(cell.digest in rows for cell in block) for rows in kinds[study].values()]
        if len(block) not in made:
            own = kinds[study].get(here, {})
            found += [cell for cell in block if cell.digest not in own]
    return found


def make_runs(
    cells: Sequence[Cell], results: Results, processes: int, watch: Callable[[RunProgress], None]
) -> int:
    """Make the open runs; returns how many other processes are making.

    Args:
        cells: The runs, as `open_cells` gives them.
        results: Where their rows are.
        processes: Most runs at a time.
        watch: Called with the reports of all runs.
    """
    return run_cells(cells, Results(results.folder, kind_here("cpu")), processes, watch)
