"""Make a sample of a study's rows again, and say which come out equal in every measured number.

    python -m offbeat_papers.rows_again fedcompass/mnist --count 12

A row can be equal only on the kind of processor that made it, so the sample is of rows of this machine's
kind. Rows of digests that the study no longer has are left out.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from offbeat.recipes.run_pool import RunProgress
from offbeat_papers.arm_rows import known_cells
from offbeat_papers.cells import Cell
from offbeat_papers.folder import default_results
from offbeat_papers.load import load_study
from offbeat_papers.measure import kind_here
from offbeat_papers.rows import ResultRow, Results
from offbeat_papers.run import run_cells
from offbeat_papers.study import Study


def sample(study: Study, results: Results, count: int, seed: int, label: str = "") -> list[Cell]:
    """Cells of rows that this machine's kind of processor made, at the size "laptop".

    Args:
        study: The study.
        results: Where the rows are.
        count: How many at most.
        seed: What draws them.
        label: Beginning of the labels to draw from; empty means all.
    """
    cells = [cell for cell in known_cells(study, "laptop", results) if cell.label.startswith(label)]
    rows = Results(results.folder, kind_here("cpu")).rows(study.name)
    made = list({cell.digest: cell for cell in cells if cell.digest in rows}.values())
    return random.Random(seed).sample(made, min(count, len(made)))


def measured(row: ResultRow) -> ResultRow:
    """A row without what says when and where it was made."""
    return replace(row, commit="", version="", machine="", processor=None)


def compare(cells: Sequence[Cell], results: Results, again: Results) -> list[tuple[Cell, ResultRow, bool]]:
    """Each cell, its row, and whether the row that was made again equals it."""
    compared = []
    here = Results(results.folder, kind_here("cpu"))
    for cell in cells:
        old, new = (place.rows(cell.study.name)[cell.digest] for place in (here, again))
        compared.append((cell, old, measured(old) == measured(new)))
    return compared


def main(words: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", help="such as fedcompass/mnist")
    parser.add_argument("--count", type=int, default=8, help="rows to make again (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="what draws them (default: 0)")
    parser.add_argument("--label", default="", help="beginning of the labels to draw from (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    given = parser.parse_args(words)
    results = default_results()
    cells = sample(load_study(given.study), results, given.count, given.seed, given.label)
    if not cells:
        print(f"no row of {given.study} was made on {kind_here('cpu')}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        again = Results(Path(folder))
        run_cells(cells, again, given.jobs, _show)
        compared = compare(cells, results, again)
    for cell, row, equal in compared:
        print(f"{cell.study.name} {cell.name}: {'equal' if equal else 'DIFFERENT'} (row of {row.commit})")
    count = sum(equal for _, _, equal in compared)
    print(f"{count} of {len(compared)} rows are equal on {kind_here('cpu')}")
    return 0 if count == len(compared) else 1


def _show(report: RunProgress) -> None:
    if report.finished:
        print(f"{report.name}: {report.error or 'done'}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
