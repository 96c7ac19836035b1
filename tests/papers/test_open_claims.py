"""What is open: which runs are missing, which would bring claims to their next look, and what they cost."""

from pathlib import Path

import pytest

from offbeat.verdicts.verdict import Verdict
from offbeat_papers.arm_rows import item_rows
from offbeat_papers.cells import study_cells
from offbeat_papers.experiments import JudgedExperiment, PaperExperiment
from offbeat_papers.judge import judge_items
from offbeat_papers.open_claims import larger_grid, open_grid
from offbeat_papers.rows import Results
from tests.papers.study_files import row
from tests.papers.test_judge import FASTER, a_study

CLOSE = (4.0, 1.05, 4.4, 0.9, 4.1, 1.2, 4.2, 1.1, 3.9, 1.0)
REVERSED = CLOSE[::-1]


def of_wireless(tmp_path: Path, seeds: int) -> tuple[Results, list[JudgedExperiment]]:
    """A study of one claim that its rows leave undecided, as an experiment of a paper."""
    study, results = a_study(FASTER, name="wireless/figure-3"), Results(tmp_path)
    for cell in study_cells(study, "laptop", seeds=seeds):
        seconds = (CLOSE if cell.label == "fedavg" else REVERSED)[cell.seed]
        arm = {"study": study.name, "column": cell.column, "label": cell.label, "seed": cell.seed}
        reached = {"accuracy": {"0.5": (seconds, 1, 3, 100)}}
        results.append(row(cell.digest, **arm, reached=reached, processor=1800.0), [])
    items = tuple(judge_items([item_rows(study, "table-1", "laptop", results)]))
    experiment = PaperExperiment(name="wireless/figure-3", title="x")
    return results, [JudgedExperiment(experiment, items, (), Verdict.UNDECIDED)]


@pytest.mark.parametrize(("seeds", "runs", "last"), [(3, 8, 0), (5, 12, 0), (10, 0, 1)])
def test_an_undecided_claim_asks_for_the_runs_to_its_next_look(
    tmp_path: Path, seeds: int, runs: int, last: int
) -> None:
    results, judged = of_wireless(tmp_path, seeds)
    found = next(row for row in open_grid(results, judged) if row[0].startswith("Scheduling"))
    assert found[1:9] == ["1", str(last), "0", "0.0", "0", "0", str(runs), "0"]
    assert found[9] == f"{runs / 2:.1f}"


def test_a_claim_whose_runs_end_before_the_target_needs_longer_ones(tmp_path: Path) -> None:
    study, results = a_study(FASTER, name="wireless/figure-3"), Results(tmp_path)
    for cell in study_cells(study, "laptop", seeds=3):
        arm = {"study": study.name, "column": cell.column, "label": cell.label, "seed": cell.seed}
        results.append(row(cell.digest, **arm, reached={"accuracy": {"0.5": None}}, processor=1800.0), [])
    items = tuple(judge_items([item_rows(study, "table-1", "laptop", results)]))
    experiment = PaperExperiment(name="wireless/figure-3", title="x")
    judged = [JudgedExperiment(experiment, items, (), Verdict.UNDECIDED)]
    found = next(row for row in open_grid(results, judged) if row[0].startswith("Scheduling"))
    assert found[1:5] == ["1", "0", "1", f"{len(study_cells(study, 'laptop', seeds=3)) / 2:.1f}"]
    assert found[7] == "0"


def test_runs_that_were_planned_and_not_made_are_counted_by_themselves(tmp_path: Path) -> None:
    results, judged = of_wireless(tmp_path, 2)
    found = next(row for row in open_grid(results, judged) if row[0].startswith("Scheduling"))
    assert found[1:8] == ["0", "0", "0", "0.0", "0", "4", "0"]


def test_a_claim_whose_runs_are_of_different_processors_waits_for_some_of_one(tmp_path: Path) -> None:
    study, results = a_study(FASTER, name="wireless/figure-3"), Results(tmp_path)
    for cell in study_cells(study, "laptop", seeds=3):
        arm = {"study": study.name, "column": cell.column, "label": cell.label, "seed": cell.seed}
        machine = "AMD EPYC, 2 cores" if cell.label == "fedavg" else "Intel Xeon, 2 cores"
        results.append(row(cell.digest, **arm, machine=machine), [])
    items = tuple(judge_items([item_rows(study, "table-1", "laptop", results)]))
    experiment = PaperExperiment(name="wireless/figure-3", title="x")
    judged = [JudgedExperiment(experiment, items, (), Verdict.UNDECIDED)]
    found = next(row for row in open_grid(results, judged) if row[0].startswith("Scheduling"))
    assert found[5] == "1"


def test_every_size_that_was_not_run_has_its_reason() -> None:
    heads, *rows = larger_grid()
    assert heads == ["study", "size", "why it was not run"]
    assert ["fedcompass/mnist-cnn", "laptop", "about 25 hours of one core"] in rows
    assert all(reason for _, _, reason in rows)
