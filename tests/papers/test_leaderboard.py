"""The leaderboard: its ranks by hand, and its tables, studies and the peers' table from the rows alone."""

import json
import shutil
from pathlib import Path

import pytest

from offbeat_papers import Trial, check_study, study_cells
from offbeat_papers.arm_rows import ItemRows
from offbeat_papers.leaderboard import papers, plateau, ranks, tables, tune
from offbeat_papers.leaderboard.command import parse_command
from offbeat_papers.load import make_study
from tests.script_modules import load_script

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "papers" / "results"
pytestmark = pytest.mark.xdist_group("papers")  # the studies are read once


@pytest.fixture(scope="module")
def boards() -> dict[str, ItemRows]:
    """The rows of the repository by data set, read once."""
    return tune.read_boards(tune.read_board()["data"])


def test_ranks_and_who_is_behind() -> None:
    seeds = [[1.0, 2.0, 3.0], [1.5, 2.5, float("inf")], [1.0, 3.0, 2.0]]
    clear = {("d", world): seeds for world in ("a", "b", "c")}
    first, second, third = ranks.rank(["x", "y", "z"], clear)
    assert (first.label, first.mean, first.low, first.high, first.behind) == ("x", 1, 1, 1, False)
    assert (second.label, second.behind) == ("y", True)
    assert (third.label, round(third.mean, 9), third.behind) == ("z", round(8 / 3, 9), True)
    assert second.low < 7 / 3 < second.high
    alike = {("d", "a"): [[1.0, 2.0]] * 3}  # nothing varies: nothing is tested
    assert [each.behind for each in ranks.rank(["x", "y"], alike)] == [False, False]
    tied = ranks.rank(["x", "y"], {("d", "a"): [[1.0, 2.0], [2.0, 1.0], [3.0, 3.0]]})
    assert [(each.mean, each.behind) for each in tied] == [(1.5, False), (1.5, False)]
    assert tied[0].low < 1.5 < tied[0].high
    assert ranks.rank(["x"], {}) == []


def test_the_interval_of_a_rank_is_the_stratified_t_over_seeds() -> None:
    blocks = {("d", "a"): [[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]], ("d", "b"): [[1.0, 2.0]] * 3}
    found = {each.label: each for each in ranks.rank(["x", "y"], blocks)}["x"]
    assert round(found.mean, 9) == round((4 / 3 + 1) / 2, 9)
    error = (1 / 3 / 3) ** 0.5 / 2  # the variance of 1, 1, 2 over three seeds; half of it counts
    assert round(found.high - found.mean, 6) == round(4.302653 * error, 6)  # Student's t, 2 degrees


def test_the_probability_of_improvement_counts_ties_half() -> None:
    never = float("inf")
    blocks = {("d", "a"): [[1.0, 2.0], [2.0, 1.0], [1.0, never]], ("d", "b"): [[never, never]] * 3}
    found = ranks.improvement(["x", "y"], blocks, "y")
    assert found.keys() == {"x"}
    assert round(found["x"].mean, 9) == round((2 / 3 + 1 / 2) / 2, 9)
    assert 0 <= found["x"].low < found["x"].mean < found["x"].high <= 1
    assert ranks.improvement(["x", "y"], {("d", "a"): [[1.0, 2.0]] * 3}, "y")["x"].low == 1
    assert ranks.improvement(["x", "y"], {}, "y") == {}


def test_targets_that_were_not_reached_share_the_last_rank() -> None:
    never = float("inf")
    found = {each.label: each.mean for each in ranks.rank(["x", "y", "z"], {("d", "a"): [[never, 5, never]]})}
    assert found == {"x": 2.5, "y": 1, "z": 2.5}


@pytest.mark.thorough
def test_nobody_leads_with_fewer_than_three_seeds(
    boards: dict[str, ItemRows], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = list(tune.read_board()["options"])
    seeds = 2

    def blocks(_: object, named: list[str], by: str) -> dict[tuple[str, str], list[list[float]]]:
        values = [list(map(float, range(len(named)))) for _ in range(seeds)]
        for seed in range(1, seeds):  # neighbours change places, but for the first
            for k in range(seed, len(named) - 1, 2):
                values[seed][k], values[seed][k + 1] = values[seed][k + 1], values[seed][k]
        return {("digits", world): values for world in "abc"}

    monkeypatch.setattr(tables, "blocks_of", blocks)
    assert tables.ranking_grid(boards)[1][-1] == "nobody: there are fewer than 3 runs of each"
    assert "**" not in str(tables.rank_grid(boards))
    seeds = 3
    assert tables.ranking_grid(boards)[1][-1] == labels[0]
    assert "**1.0 [1.0, 1.0]**" in tables.rank_grid(boards)[1]


def test_every_algorithm_has_a_row_for_each_data_set(boards: dict[str, ItemRows]) -> None:
    heads, *rows = tables.board_grid(boards)
    assert heads[2:7] == list(tune.read_board()["worlds"])
    assert len(rows) == sum(len(each.study.labels) for each in boards.values())
    ranked = tables.rank_grid(boards)[1:]
    assert [sum(row[0] == group for row in ranked) for group in dict.fromkeys(row[0] for row in ranked)] == [
        len(tables.shared_labels(group)) for group in tables.groups_of(boards)
    ]


def test_the_peers_table_is_what_their_rows_give() -> None:
    peers = load_script(ROOT / "benchmarks" / "peers_learning.py")
    kept = json.loads((RESULTS / "peers.json").read_text(encoding="utf-8"))
    written = (ROOT / "benchmarks" / "tables" / "peers_learning.md").read_text(encoding="utf-8")
    assert peers.text(kept) == written, "peers_learning.py --out benchmarks/tables/peers_learning.md"


def test_the_figure_has_every_algorithm_of_the_board(
    boards: dict[str, ItemRows], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert tables.draw(tables.everywhere(boards), tmp_path / "ranks.svg")
    text = (tmp_path / "ranks.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {label} -->" in text for label in tables.shared_labels(tables.everywhere(boards)))
    assert not tables.draw({}, tmp_path / "none.svg")


def test_every_label_has_four_options_and_every_study_builds() -> None:
    board = tune.read_board()
    assert set(board["options"]) == set(board["recipe"]["algorithms"])
    assert {len(options) for options in board["options"].values()} == {4}
    assert len(board["learning_rates"]) + 4 + 1 == tune.TRIALS
    chosen = {
        label: Trial({"training.lr": 0.3, **own[0]}, 1, 1, 1, 1) for label, own in board["options"].items()
    }
    study = make_study("leaderboard/digits", tune.tuned_study(board, "digits", chosen))
    assert len(study_cells(study, "laptop")) == 3 * len(board["worlds"]) * len(board["options"])


def test_every_method_of_a_paper_has_as_many_trials_and_every_study_builds() -> None:
    trials = tune.TRIALS
    for paper, plan in papers.read_papers().items():
        assert list(plan["options"]) == plan["labels"]
        assert {len(plan["learning_rates"]) + len(own) + 1 for own in plan["options"].values()} == {trials}
        given, start = papers.paper_recipe(plan)["training"]["lr"], plan.get("start", {})
        for label, own in plan["options"].items():
            first = start.get(label, {})
            rates = [(rate, first) for rate in plan["learning_rates"]]
            for best in (given, *plan["learning_rates"]):
                more = [
                    (
                        best * option.get("training.lr", 1),
                        first | {k: v for k, v in option.items() if k != "training.lr"},
                    )
                    for option in own
                ]
                trials_made = [(given, {}), *rates, *more]
                assert len({str(trial) for trial in trials_made}) == trials, f"{paper}, {label}, {best}"
        for place in range(4):
            chosen = {
                label: Trial({"training.lr": 0.3, **own[place]}, 1, 1, 1, 1)
                for label, own in plan["options"].items()
            }
            document = papers.paper_study(plan, chosen)
            check_study(make_study(f"{paper}/tuned", document))
            assert len(document["recipe"]["algorithms"]) == 2 * len(plan["labels"])


def test_the_commands_take_known_names_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_command("x", "data", ["a", "b"], []) == (["a", "b"], 1)
    assert parse_command("x", "data", ["a", "b"], ["b", "--jobs", "2"]) == (["b"], 2)
    for words, message in (
        (["c"], "data c is unknown: known are a, b"),
        (["--jobs", "0"], "--jobs 0 is not allowed: should be at least 1"),
    ):
        with pytest.raises(SystemExit) as ended:
            parse_command("x", "data", ["a", "b"], words)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("data", plateau.read_plan()["data"])
def test_every_method_comes_to_its_plateau_after_the_same_updates(data: str) -> None:
    plan = plateau.read_plan()
    chosen = {label: Trial({"training.lr": 0.3}, 1, 1, 1, 1) for label in plan["labels"]}
    study = make_study(f"fedasmu/plateau-{data}", plateau.plateau_study(plan, data, chosen))
    check_study(study)
    cells = study_cells(study, "laptop", seeds=1)
    assert [cell.label for cell in cells] == plan["labels"]
    for cell in cells:
        training, until = cell.recipe.training, cell.recipe.until
        assert (training.lr, until.tasks, until.seconds) == (0.3, 2000, None)
        versions = 10 * 200 // {"fedbuff": 5, "port": 10}.get(cell.label, 1 if cell.label in MIXED else 10)
        assert training.decay is not None
        assert training.decay.factor(versions) == pytest.approx(0.05, abs=0.003)
    tuning = plateau.plateau_recipe(plan, data, "tuning")
    assert 2 * tuning["until"]["tasks"] == 2000
    assert tuning["training"]["decay"]["gamma"] ** 100 == pytest.approx(0.05, abs=0.003)


MIXED = {"fedasmu", "fedasync", "asofed", "fedssmu"}
"""The methods that make a version of each update."""


@pytest.mark.thorough
def test_the_studies_of_plateaus_are_what_the_rows_of_the_tuning_give(tmp_path: Path) -> None:
    plan = plateau.read_plan()
    for data in plan["data"]:
        shutil.copy(RESULTS / f"fedasmu-plateau-{data}-tuning.csv", tmp_path)
        chosen = {label: plateau.tune_label(plan, data, label, 1, tmp_path) for label in plan["labels"]}
        written = plateau.STUDIES / f"plateau-{data}.yaml"
        assert plateau.study_text(plateau.plateau_study(plan, data, chosen)) == written.read_text("utf-8")


@pytest.mark.thorough
def test_the_papers_studies_are_what_the_rows_of_the_tuning_give(tmp_path: Path) -> None:
    for paper, plan in papers.read_papers().items():
        written = papers.STUDIES / paper / "tuned.yaml"
        if not written.exists():
            continue
        shutil.copy(RESULTS / f"{paper}-tuned-tuning.csv", tmp_path)
        chosen = {label: papers.tune_method(paper, plan, label, 1, tmp_path) for label in plan["labels"]}
        assert papers.study_text(papers.paper_study(plan, chosen)) == written.read_text(encoding="utf-8")


@pytest.mark.thorough
def test_the_studies_are_what_the_rows_of_the_tuning_give(tmp_path: Path) -> None:
    board = tune.read_board()
    for data in board["data"]:
        written = tune.HERE / f"{data}.yaml"
        if not written.exists():
            continue
        name = f"leaderboard-{data}-tuning.csv"  # a copy: should a row be missing, its run is made there
        shutil.copy(RESULTS / name, tmp_path)
        chosen = {
            label: tune.tune_label(board, data, label, 1, tmp_path) for label in tune.labels_of(board, data)
        }
        assert tune.study_text(tune.tuned_study(board, data, chosen)) == written.read_text(encoding="utf-8")
