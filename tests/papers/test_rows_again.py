"""Rows of a study are made again, and what differs is told."""

from dataclasses import replace
from pathlib import Path

from offbeat_papers.arm_rows import item_cells
from offbeat_papers.load import make_study
from offbeat_papers.measure import kind_here
from offbeat_papers.rows import Results
from offbeat_papers.rows_again import compare, sample
from offbeat_papers.run import run_cells
from tests.papers.study_files import DOCUMENT, row


def test_a_sample_of_this_processors_rows_comes_out_equal_and_a_changed_row_does_not(tmp_path: Path) -> None:
    study = make_study("p/s", DOCUMENT)
    made, again = Results(tmp_path / "made"), Results(tmp_path / "again")
    cells = item_cells(study, "table-1", "laptop", columns=["one"], labels=["fedbuff"], seeds=2)
    assert run_cells(cells, made, 1, lambda _: None) == 0
    made.append(row("foreign", machine="Z80, 1 cores, PyTorch 2"), [])
    chosen = sample(study, made, 8, seed=0)
    assert sorted(cell.digest for cell in chosen) == sorted(cell.digest for cell in cells)
    assert sample(study, made, 8, seed=0, label="fedavg") == []
    changed = replace(made.rows("p/s")[cells[0].digest], tasks=13)
    made.append(changed, [])
    assert run_cells(chosen, again, 1, lambda _: None) == 0
    told = {cell.digest: equal for cell, _, equal in compare(chosen, made, again)}
    assert told == {cells[0].digest: False, cells[1].digest: True}
    assert all(kind_here("cpu") == found.processor_name for _, found, _ in compare(chosen, made, again))
