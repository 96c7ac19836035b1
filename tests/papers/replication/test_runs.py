"""The runs of the second study: blocks of a column and seed on one kind of processor."""

from pathlib import Path

import pytest

from offbeat_papers.cells import Cell, study_cells
from offbeat_papers.load import make_study
from offbeat_papers.replication import __main__ as command
from offbeat_papers.replication import design, judge, runs
from offbeat_papers.replication.runs import all_cells, open_cells
from offbeat_papers.rows import Results
from tests.papers.study_files import DOCUMENT, row


def cells() -> list[Cell]:
    """Two labels, two columns and two seeds."""
    study = make_study("p/s", DOCUMENT)
    return study_cells(study, "laptop", seeds=2)


def made_on(results: Results, cell: Cell, kind: str) -> None:
    """Write the row of a run."""
    place = {"column": cell.column, "label": cell.label, "seed": cell.seed}
    results.append(row(cell.digest, machine=f"{kind}, 2 cores, PyTorch 2", **place), [])


def test_a_block_that_another_kind_of_processor_began_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "kind_here", lambda _: "here")
    results, all_of_them = Results(tmp_path), cells()
    assert open_cells(all_of_them, results) == all_of_them
    block = [cell for cell in all_of_them if (cell.column, cell.seed) == ("one", 0)]
    made_on(results, block[0], "there")
    assert open_cells(all_of_them, results) == all_of_them, "the block is cut in two"
    made_on(results, block[0], "here")
    assert block[0] not in open_cells(all_of_them, results)
    assert block[1] in open_cells(all_of_them, results)
    made_on(results, block[1], "there")
    left = open_cells(all_of_them, results)
    assert not {cell.digest for cell in block} & {cell.digest for cell in left}, "it is complete there"
    assert len(left) == len(all_of_them) - len(block)


def test_the_runs_of_a_design_are_made_and_its_claims_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_study("p/s", DOCUMENT)
    small = design.Design(
        first_seed=100, studies={"p/s": design.StudySeeds(seeds=3)},
        first_of={"name": "first_of", "share": 0.8}, reworded=[],
    )  # fmt: skip
    monkeypatch.setattr(design, "load_study", lambda _: study)
    monkeypatch.setattr(design, "SIZE", "laptop")
    for module in (design, judge, runs, command):
        monkeypatch.setattr(module, "load_design", lambda: small)
    monkeypatch.setattr(command, "commit", lambda: "c0ffee0")
    design.fresh_study.cache_clear()
    planned = [*all_cells()]
    assert {cell.seed for cell in planned} == {100, 101, 102}
    assert {cell.label for cell in planned} == {"fedavg", "fedbuff", "first-of"}
    words = ["--results", str(tmp_path)]
    assert command.main(["run", *words]) == 0
    assert command.main(["run", *words]) == 0, "nothing is left to make"
    results = Results(tmp_path)
    assert len(results.rows("p/s")) == len(planned) == 18
    assert {key[3] for key in results.levels("p/s")} == {"0.5"}
    capsys.readouterr()
    assert command.main(["show", *words]) == 0
    shown = capsys.readouterr().out
    assert "p/s: 18 of 18 runs, 3 seeds" in shown
    assert "FedBuff is faster" in shown
    assert "first-of against fedavg, in 2 settings" in shown
    [claims] = judge.answer_papers(results).values()
    [claim] = claims
    effect = claim.effect
    assert claim.sampled.is_complete
    assert effect is not None
    assert effect.pairs == 2
    design.fresh_study.cache_clear()


def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, line in (
        (["run", "wireless/figure-9"], "STUDY wireless/figure-9 is not of the design"),
        (["run", "--jobs", "0"], "--jobs 0 is not allowed"),
        (["walk"], "walk"),
    ):
        with pytest.raises(SystemExit) as stopped:
            command.main(words)
        assert stopped.value.code == 2
        assert line in capsys.readouterr().err
