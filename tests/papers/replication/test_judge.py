"""The second study's claims by rows that are written by hand."""

from math import log
from pathlib import Path

import pytest

from offbeat_papers.arm_rows import item_rows
from offbeat_papers.cells import study_cells
from offbeat_papers.claim_pairs import measure_claim
from offbeat_papers.levels import RunLevels
from offbeat_papers.load import make_study
from offbeat_papers.replication import judge
from offbeat_papers.replication.rule import Answer
from offbeat_papers.rows import Results
from offbeat_papers.study import Study
from tests.papers.study_files import DOCUMENT, row

LENGTHS = {"fedbuff": 100.0, "fedavg": 400.0}


def study() -> Study:
    """The small study with one column, and with four seeds from 100 on."""
    recipe = DOCUMENT["recipe"] | {"seed": 100, "seeds": 4}
    items = {"table-1": {**DOCUMENT["items"]["table-1"], "numbers": {"one": {"fedavg": 30.0, "fedbuff": 1}}}}
    return make_study("p/s", {**DOCUMENT, "recipe": recipe, "columns": {"one": {}}, "items": items})


def write_rows(results: Results, seconds: dict[str, list[float | None]]) -> None:
    """Write the rows of each label; a run reaches all levels at once after some seconds, or misses them."""
    for cell in study_cells(study(), "laptop"):
        at = seconds[cell.label][cell.seed - 100]
        costs = None if at is None else (at, 1.0, 3.0, 100.0)
        spent = {"accuracy": (LENGTHS[cell.label], 9, 30, 1000)}
        own = row(
            cell.digest, label=cell.label, column=cell.column, seed=cell.seed, spent=spent,
            reached={"accuracy": {"0.5": costs}},
        )  # fmt: skip
        levels = [RunLevels(cell.digest, own.machine, "accuracy", "0.5", (costs,) * 6)]
        results.append(own, [], levels)


def judged(results: Results) -> judge.AnsweredClaim:
    """The claim of the study."""
    rows = item_rows(study(), "table-1", "laptop", results)
    return judge._claim(rows, 1, rows.item.claims[0])


def test_an_effect_has_all_that_runs_spent_and_the_verdict_what_both_spent(tmp_path: Path) -> None:
    results = Results(tmp_path)
    write_rows(results, {"fedbuff": [10.0, 20.0, 10.0, 20.0], "fedavg": [50.0, 50.0, 200.0, 400.0]})
    claim = judged(results)
    pair = claim.pairs[0]
    assert pair.whole == pytest.approx({100: log(5), 101: log(2.5), 102: log(20), 103: log(20)})
    # FedBuff's runs end after 100 s: FedAvg's third and fourth run are late, however late they are.
    assert pair.advantages == pytest.approx({100: log(5), 101: log(2.5), 102: log(10), 103: log(5)})
    assert claim.effect is not None
    assert claim.effect.mean == pytest.approx(log(5 * 2.5 * 20 * 20) / 4)
    assert claim.effect_at_target == pytest.approx(claim.effect.mean)
    assert claim.paper == pytest.approx(log(30))
    assert claim.ahead == (1, 1)


def test_no_effect_is_compared_with_the_papers_where_runs_miss_the_target(tmp_path: Path) -> None:
    results = Results(tmp_path / "all")
    write_rows(results, {"fedbuff": [10.0, 11.0, 10.0, 11.0], "fedavg": [20.0, 21.0, 20.0, 21.0]})
    claim = judged(results)
    assert (claim.missed, claim.is_smaller) == (0.0, True)
    results = Results(tmp_path / "some")
    write_rows(results, {"fedbuff": [10.0, 11.0, 10.0, 11.0], "fedavg": [20.0, 21.0, None, 21.0]})
    claim = judged(results)
    assert (claim.missed, claim.is_smaller) == (0.125, False)


def test_a_difference_matters_from_a_third_of_the_papers_effect(tmp_path: Path) -> None:
    results = Results(tmp_path)
    write_rows(results, {"fedbuff": [10.0] * 4, "fedavg": [20.0] * 4})
    assert judged(results).sampled.matters == pytest.approx(log(30) / 3)


def test_a_claim_is_not_run_before_all_of_its_seeds_are_there(tmp_path: Path) -> None:
    claim = judged(Results(tmp_path))
    assert not claim.sampled.is_complete
    assert claim.effect is None
    assert not claim.is_smaller


def test_a_diverged_run_misses_all_levels_with_the_most_that_a_run_spent(tmp_path: Path) -> None:
    results = Results(tmp_path)
    write_rows(results, {"fedbuff": [10.0] * 4, "fedavg": [20.0] * 4})
    rows = item_rows(study(), "table-1", "laptop", results)
    diverged = row("x", ended="training has diverged", spent={}, best={}, reached={})
    climb = rows._climb(diverged, "one", "time")
    assert climb.end == 400.0
    assert not any(cost.reached for cost in climb.costs)


def test_rows_without_levels_are_compared_at_the_target(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for cell in study_cells(study(), "laptop"):
        at = {"fedbuff": 10.0, "fedavg": 40.0}[cell.label]
        measured = {
            "reached": {"accuracy": {"0.5": (at, 1, 3, 100)}},
            "spent": {"accuracy": (90, 9, 30, 1000)},
        }
        results.append(row(cell.digest, label=cell.label, column="one", seed=cell.seed, **measured), [])
    rows = item_rows(study(), "table-1", "laptop", results)
    [pair] = measure_claim(rows, rows.item.claims[0]).pairs
    assert pair.advantages == pytest.approx(dict.fromkeys(range(100, 104), log(4)))
    assert pair.whole == {}


def test_an_answer_begins_as_not_run(tmp_path: Path) -> None:
    assert judged(Results(tmp_path)).answer == Answer.NOT_RUN


def test_a_run_whose_levels_nobody_kept_has_not_missed_them(tmp_path: Path) -> None:
    kept, left_out = Results(tmp_path / "kept"), Results(tmp_path / "left-out")
    write_rows(kept, {"fedbuff": [10.0] * 4, "fedavg": [50.0] * 4})
    levels = kept.levels("p/s")
    for digest, own in kept.rows("p/s").items():
        found = [each for key, each in levels.items() if key[0] == digest]
        left_out.append(own, [], [] if (own.label, own.seed) == ("fedbuff", 102) else found)
    assert judged(kept).pairs[0].seeds == {100, 101, 102, 103}
    assert judged(left_out).pairs[0].seeds == {100, 101, 103}
