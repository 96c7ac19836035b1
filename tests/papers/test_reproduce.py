"""Runs of studies: rows, resuming, several processes, tables, the command."""

import csv
import re
import signal
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.recipes.run_pool import RunProgress
from offbeat.runs.processor import processor_name
from offbeat.verdicts.verdict import Verdict
from offbeat_papers.arm_rows import item_cells, item_rows, known_cells
from offbeat_papers.cells import own_sources, study_cells
from offbeat_papers.figure import write_figure
from offbeat_papers.judge import judge_item
from offbeat_papers.load import find_item, load_study, make_study, study_recipe
from offbeat_papers.measure import RunName, diverged_run
from offbeat_papers.reproduce import _worth_running
from offbeat_papers.rows import Results, RunCurve
from offbeat_papers.run import Estimate, estimate, missing, run_cells, unfinished_name
from offbeat_papers.study import Study
from offbeat_papers.texts import item_grid, item_markdown, pair_counts
from tests.forks import OFFBEAT, Fork
from tests.papers.study_files import DOCUMENT, row


def ignore(report: RunProgress) -> None:
    assert report.error is None


@pytest.fixture(scope="module")
def study() -> Study:
    return make_study("p/s", DOCUMENT)


@pytest.fixture(scope="module")
def made(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The rows of the study at the size "seconds": two labels, two columns, one seed."""
    results = Results(tmp_path_factory.mktemp("results"))
    assert run_cells(item_cells(study, "table-1", "seconds"), results, 2, ignore) == 0
    return results


def test_a_row_is_read_as_it_was_written(tmp_path: Path) -> None:
    results, first = Results(tmp_path), row(processor=None, level={"loss": 0.125})
    results.append(first, [RunCurve("d", "accuracy", (0.0, 1.5), (0.1, 0.25))])
    results.append(row("e", label='a, "b"'), [])
    found = results.rows("p/s")
    assert list(found) == ["d", "e"]
    assert found["e"].label == 'a, "b"'
    assert found["d"] == replace(
        first,
        spent={"accuracy": [10.0, 5, 20, 1000]},
        reached={"accuracy": {"0.5": [2.5, 1, 3, 100], "0.6": None}},
    )
    assert results.curves("p/s")["d", "accuracy"].values == (0.1, 0.25)
    cost = found["d"].cost("tasks", "accuracy", 0.5)
    assert (cost and cost.amount, cost and cost.reached) == (3.0, True)
    cost = found["d"].cost("time", "accuracy", 0.6)
    assert (cost and cost.amount, cost and cost.reached) == (10.0, False)
    assert found["d"].cost("time", "accuracy", 0.7) is None


def test_rows_are_read_again_when_their_file_has_changed(tmp_path: Path) -> None:
    results, other = Results(tmp_path), Results(tmp_path)
    assert results.rows("p/s") == {}
    other.append(row("d"), [])
    first = results.rows("p/s")
    assert list(first) == ["d"]
    first.clear()
    assert results.rows("p/s")["d"] is results.rows("p/s")["d"], "it is read once"
    other.append(row("e"), [])
    assert list(results.rows("p/s")) == ["d", "e"]
    other.path("p/s").unlink()
    assert results.rows("p/s") == {}


def test_a_row_that_a_crash_has_cut_is_dropped_and_what_follows_is_whole(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.append(row("d"), [])
    results.append(row("e"), [])
    path = results.path("p/s")
    path.write_bytes(path.read_bytes()[:-30])
    assert list(results.rows("p/s")) == ["d"]
    results.append(row("f"), [])
    assert list(results.rows("p/s")) == ["d", "f"]


def test_numbers_of_a_run_that_explodes_are_limited_and_read_again(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.append(row("d", final={"perplexity": 2.6e195, "loss": -1e300}, level={"loss": -0.5}), [])
    found = results.rows("p/s")["d"]
    assert (found.final, found.level) == ({"perplexity": 1e100, "loss": -1e100}, {"loss": -0.5})
    results.append(row("e", final={"loss": float("nan"), "accuracy": 0.5}), [])
    assert results.rows("p/s")["e"].final == {"accuracy": 0.5}  # no number is no value


def test_a_row_of_an_absurd_seed_asks_for_no_runs(study: Study, tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.append(row("d", seed=10**9), [])
    assert len(known_cells(study, "laptop", results)) == len(study_cells(study, "laptop"))


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.path("p/s").write_text("a,b\n1,2\n")
    with pytest.raises(ob.UsageError, match="other columns"):
        results.rows("p/s")
    results = Results(tmp_path / "other")
    results.append(row(), [])
    path = results.path("p/s")
    path.write_text(path.read_text().replace(",0.5,", ",half,"))
    with pytest.raises(ob.UsageError, match="line 2: a row that cannot be read: processor = 'half'; delete"):
        results.rows("p/s")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (',"{""accuracy"":0.5}",', ',"{""accuracy"":NaN}",', "best = "),
        (',"{""accuracy"":0.5}",', ',"{""accuracy"":Infinity}",', "best = "),
        (',"{""accuracy"":0.5}",', ',"{""accuracy"":1e308}",', "best = "),
        (',"{""accuracy"":0.5}",', ',"{""accuracy"":1e999}",', "best = "),
        ("[2.5,1,3,100]", "[-2.5,1,3,100]", "reached = "),
        ("fedavg,0,d", "fedavg,-1,d", "seed = '-1'"),
        (",1.0,0.5,", ",-1.0,0.5,", "seconds = '-1.0'"),
        ("p/s,laptop,one,", "p/s,laptop,", "it has not 22 cells"),
        ("p/s,laptop,one,", "p/s,laptop,one,one,", "it has not 22 cells"),
    ],
)
def test_a_row_with_what_no_run_gives_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    results = Results(tmp_path)
    results.append(row("c", label="fedbuff", best={}), [])
    results.append(row("d"), [])
    path = results.path("p/s")
    text = path.read_text().replace(",1,0.5,", ",1.0,0.5,")
    head, _, last = text.rpartition("p/s,")
    assert old in f"p/s,{last}"
    path.write_text(head + f"p/s,{last}".replace(old, new, 1))
    with pytest.raises(ob.UsageError, match=f"{path}, line 3: a row that cannot be read: {re.escape(told)}"):
        results.rows("p/s")


def test_the_digest_is_of_what_gives_the_numbers(study: Study) -> None:
    def digests(**changes: object) -> list[str]:
        document = yaml.safe_load(yaml.safe_dump(DOCUMENT))
        document["recipe"] |= changes
        return [cell.digest for cell in study_cells(make_study("p/s", document), "laptop", columns=["one"])]

    same = digests()
    assert len(set(same)) == len(same) == 6
    assert digests(target=0.7, title="Another", metric="accuracy") == same
    assert not {*digests(until={"tasks": 13})} & {*same}
    assert not {*digests(training={"lr": 0.1})} & {*same}
    assert digests(training={"lr": 0.2}, clients=3.0) == same
    assert not {*digests(evaluate={"versions": 2})} & {*same}
    other = digests(algorithms={"fedavg": {"steps": 3}, "fedbuff": {"steps": 2, "size": 2}})
    assert len({*other} & {*same}) == 3
    seeds = digests(seed=1)
    assert len({*seeds} & {*same}) == 4


def test_the_digest_covers_the_file_of_a_function_of_one_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digests() -> list[str]:
        document = yaml.safe_load(yaml.safe_dump(DOCUMENT))
        document["recipe"]["algorithms"]["fedavg"]["name"] = "my_methods.mine:schedule"
        cells = study_cells(make_study("p/s", document), "laptop", columns=["one"], seeds=1)
        return [cell.digest for cell in cells]

    monkeypatch.chdir(tmp_path)
    without = digests()
    ours = study_recipe(make_study("p/s", DOCUMENT), "laptop", "one").model_copy(
        update={"loss": "offbeat.sim:x"}
    )
    assert own_sources(ours) == {}  # a version of Offbeat leaves the rows of others as they are
    (tmp_path / "my_methods").mkdir()
    file = tmp_path / "my_methods" / "mine.py"
    file.write_text("raise SystemExit('imported')\n")
    own, buffered = digests()
    assert (own != without[0], buffered) == (True, without[1])  # only the label that names it
    monkeypatch.syspath_prepend(str(tmp_path))  # as after an import from the current directory
    assert digests()[0] == own
    file.write_text("raise SystemExit('imported again')\n")
    assert digests()[0] not in (own, without[0])
    file.unlink()
    (tmp_path / "my_methods" / "mine").mkdir()
    (tmp_path / "my_methods" / "mine" / "__init__.py").write_text("raise SystemExit('imported')\n")
    assert digests()[0] == own  # the same code
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("my_methods/mine.py", "raise SystemExit('from an archive')\n")
        archive.writestr("my_methods/__init__.py", "")
    monkeypatch.chdir(tmp_path / "my_methods")
    monkeypatch.setattr("sys.path", [str(tmp_path / "archive.zip")])
    assert digests()[0] not in (own, without[0])


def test_a_finished_study_has_a_row_for_each_run_and_nothing_is_run_again(
    study: Study, made: Results
) -> None:
    rows = made.rows("p/s")
    assert {(r.column, r.label, r.seed, r.size) for r in rows.values()} == {
        (column, label, 0, "seconds") for column in ("one", "two") for label in ("fedavg", "fedbuff")
    }
    for found in rows.values():
        assert found.tasks == 4
        assert found.ended == "reached 4 client tasks"
        assert found.processor is not None
        assert 0 < found.processor < 60
        assert found.best["accuracy"] >= found.final["accuracy"]
        assert (found.digest, "accuracy") in made.curves("p/s")
    assert missing(study_cells(study, "seconds"), made) == []
    assert not [path for path in made.runs("p/s").iterdir() if path.is_dir()]
    expected = estimate(missing(study_cells(study, "seconds", seeds=2), made), made)
    assert (expected.runs, expected.unknown) == (4, 0)
    assert expected.processor == pytest.approx(sum(r.processor or 0 for r in rows.values()))
    assert estimate(study_cells(study, "laptop"), made).unknown == 12


def test_an_estimate_prefers_runs_on_this_kind_of_processor(study: Study, tmp_path: Path) -> None:
    results, todo = Results(tmp_path), study_cells(study, "laptop", labels=["fedavg"], seeds=2)
    here, seconds = f"{processor_name()}, 2 cores, PyTorch 2", (1.0, 10.0, 100.0)
    for digest, machine, processor in zip(
        "abc", (here, "Z80, 1 cores", "Z80, 1 cores"), seconds, strict=True
    ):
        results.append(row(digest, machine=machine, processor=processor), [])
    assert estimate(todo, results, here=True) == Estimate(4, 0, 0, 4.0)
    anywhere = estimate(todo, results)
    assert (anywhere.unknown, anywhere.processor) == (0, pytest.approx(4 * 37.0))
    moved = [cell.on("cuda") for cell in todo]
    assert estimate(moved, results, here=True) == Estimate(4, 0, 4, pytest.approx(4 * 37.0))


def test_a_run_that_another_process_makes_is_left_to_it(study: Study, tmp_path: Path) -> None:
    results, cells = Results(tmp_path), study_cells(study, "seconds", columns=["one"], labels=["fedavg"])
    with results.lock("p/s", cells[0].digest):
        assert run_cells(cells, results, 1, ignore) == 1
    assert results.rows("p/s") == {}


def test_the_item_is_drawn_and_written_from_rows_alone(study: Study, made: Results, tmp_path: Path) -> None:
    judged = judge_item(item_rows(study, "table-1", "seconds", made))
    assert (judged.rows.made, judged.rows.planned) == (4, 4)
    assert judged.verdict == Verdict.NOT_RUN  # one seed says nothing
    grid = item_grid(judged.rows)
    assert grid[0] == ["", "one", "two"]
    assert [cells[0] for cells in grid[1:]] == ["fedavg", "fedbuff"]
    assert grid[2][1].endswith(" / 1.00x")
    assert grid[1][2].endswith(" / -")
    text = item_markdown(judged, "f.png")
    assert "| FedBuff is faster |" in text
    assert "not run" in text
    for kind in ("curves", "bars", "lines"):
        items = {"table-1": study.items["table-1"].model_copy(update={"figure": kind, "shows": "best"})}
        drawn = item_rows(study.model_copy(update={"items": items}), "table-1", "seconds", made)
        path = write_figure(drawn, made, tmp_path / f"{kind}.png")
        assert path is not None
        assert path.stat().st_size > 5000


def test_verdicts_of_rows_by_hand(study: Study, tmp_path: Path) -> None:
    """FedBuff needs half of FedAvg's time in column one; in column two neither gets there."""
    results = Results(tmp_path)
    for cell in study_cells(study, "laptop"):
        time = {"fedavg": 4.0, "fedbuff": 2.0}[cell.label] + 0.1 * cell.seed
        reached = (time, 1, 2, 100) if cell.column == "one" else None
        arm = {"column": cell.column, "label": cell.label, "seed": cell.seed}
        results.append(row(cell.digest, **arm, reached={"accuracy": {"0.5": reached}}), [])
    judged = judge_item(item_rows(study, "table-1", "laptop", results))
    (claim,) = judged.claims
    # log(4 / 2), log(4.1 / 2.1), log(4.2 / 2.2): 0.6931, 0.6690, 0.6466; half of it on average, t = 49.9
    assert [pair.mean(claim.seeds) for pair in claim.pairs] == [pytest.approx(0.6696, abs=1e-4), None]
    assert claim.last is not None
    assert claim.last.effect is not None
    assert claim.last.effect.mean == pytest.approx(0.3348, abs=1e-4)
    assert claim.last.sides("average").ahead == pytest.approx(2.0e-4, abs=2e-5)
    assert claim.verdict == judged.verdict == Verdict.HELD
    assert claim.answers["every"] == Verdict.UNDECIDED
    assert claim.pairs[0].paper == pytest.approx(0.6931, abs=1e-4)
    assert claim.pairs[1].paper == float("inf")
    assert item_grid(judged.rows)[1] == ["fedavg", "1.95x [1.84x, 2.07x] / 2.00x", "- (0 of 3 seeds) / -"]


def test_a_size_has_targets_of_its_own_where_the_item_has_none(tmp_path: Path) -> None:
    sizes = {**DOCUMENT["sizes"], "laptop": {"targets": {"two": 0.4}}}
    item = DOCUMENT["items"]["table-1"]
    items = {"table-1": item, "own": item | {"target": 0.3}, "by-column": item | {"target": {"one": 0.2}}}
    study = make_study("p/s", {**DOCUMENT, "sizes": sizes, "items": items})
    found = {name: item_rows(study, name, "laptop", Results(tmp_path)).targets for name in items}
    assert found == {
        "table-1": {"one": 0.5, "two": 0.4},
        "own": {"one": 0.3, "two": 0.3},
        "by-column": {"one": 0.2, "two": 0.4},
    }
    assert item_rows(study, "table-1", "seconds", Results(tmp_path)).targets == {"one": 0.5, "two": 0.5}


@pytest.mark.parametrize(
    ("never", "cell"),
    [
        ((), "2.00x [2.00x, 2.00x]"),
        (("fedbuff",), "< 1.17x [0.12x, 11.76x]"),  # its 10 s are the least it can take, the ratio the most
        (("fedavg",), "> 2.71x [0.73x, 10.10x] (2 of 3 seeds)"),
        (("fedavg", "fedbuff"), "~ 1.59x [0.07x, 38.03x] (2 of 3 seeds)"),
    ],
)
def test_ratios_of_runs_that_did_not_get_there_are_bounds(
    study: Study, tmp_path: Path, never: tuple[str, ...], cell: str
) -> None:
    results = Results(tmp_path)
    for own in study_cells(study, "laptop", columns=["one"]):
        time = {"fedavg": 4.0, "fedbuff": 2.0}[own.label]
        late = own.label in never and own.seed == never.index(own.label)
        reached = {"accuracy": {"0.5": None if late else (time, 1, 2, 100)}}
        arm = {"column": own.column, "label": own.label, "seed": own.seed}
        results.append(row(own.digest, **arm, reached=reached), [])
    text = item_grid(item_rows(study, "table-1", "laptop", results))[1][1]
    assert text == f"{cell} / 2.00x"


def test_the_pairs_that_a_size_leaves_out_are_counted(study: Study, tmp_path: Path) -> None:
    sizes = {"laptop": study.sizes["laptop"].model_copy(update={"columns": ["one"]})}
    judged = judge_item(
        item_rows(study.model_copy(update={"sizes": sizes}), "table-1", "laptop", Results(tmp_path))
    )
    assert (len(judged.claims[0].pairs), judged.claims[0].measured.named) == (1, 2)
    assert pair_counts(judged.claims[0]) == "1 pair (2 named)"


def test_a_run_that_diverges_counts_as_not_there_at_the_end_of_the_others(
    study: Study, tmp_path: Path
) -> None:
    results = Results(tmp_path)
    for cell in study_cells(study, "laptop", columns=["one"]):
        early = {"ended": "the training has diverged", "spent": {"accuracy": (1.0, 1, 1, 1)}}
        values = early if cell.label == "fedavg" else {}
        reached = None if early is values else (2.5 + 0.01 * cell.seed, 1, 3, 100)
        arm = {"column": cell.column, "label": cell.label, "seed": cell.seed}
        results.append(row(cell.digest, **arm, **values, reached={"accuracy": {"0.5": reached}}), [])
    (claim,) = judge_item(item_rows(study, "table-1", "laptop", results)).claims
    assert claim.verdict == Verdict.NOT_RUN  # of its two pairs one has no rows
    assert claim.pairs[0].mean(range(1)) is None
    assert claim.pairs[0].mean(range(3)) == pytest.approx(1.3823, abs=1e-4)  # nearly log(10 / 2.5)


def test_a_run_that_has_diverged_got_nothing_right_and_never_there(study: Study, tmp_path: Path) -> None:
    results = Results(tmp_path)
    claims = [{"says": "it is better", "better": "fedbuff", "than": ["fedavg"], "by": "best"}]
    item = {**DOCUMENT["items"]["table-1"], "claims": claims}
    judged = make_study("p/s", {**DOCUMENT, "items": {"table-1": item}})
    for cell in study_cells(study, "laptop"):
        place = RunName("p/s", "laptop", cell.column, cell.label, cell.seed, cell.digest)
        wild = diverged_run(place, "client 1, task 2: the training has diverged; give a smaller rate", 1.0)
        own = replace(
            row(cell.digest, column=cell.column, label=cell.label, seed=cell.seed),
            best={"accuracy": 0.5 + 0.01 * cell.seed},
            reached={"accuracy": {"0.5": (2.5 + cell.seed / 100, 1, 3, 9)}},
            machine=wild.machine,
        )
        results.append(wild if cell.label == "fedavg" else own, [])
    (claim,) = judge_item(item_rows(judged, "table-1", "laptop", results)).claims
    assert claim.verdict == Verdict.HELD
    assert claim.effects == pytest.approx([0.51, 0.51])
    ends = {found.ended for found in results.rows("p/s").values() if found.diverged}
    assert ends == {"client 1, task 2: the training has diverged"}
    (faster,) = judge_item(item_rows(study, "table-1", "laptop", results)).claims
    assert faster.verdict == Verdict.HELD


def test_the_command_lists_runs_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    study = tmp_path / "p" / "s.yaml"
    study.write_text(yaml.safe_dump(DOCUMENT))
    words = ("reproduce", f"{study}:table-1", "--scale", "seconds", "--results", str(tmp_path / "results"))
    choice = (*words, "--columns", "one", "--labels", "fedavg", "--workers", "1")
    first = Fork(OFFBEAT, *choice, "--report", str(tmp_path / "out"))
    out, errors = first.communicate()
    assert first.returncode == 0, errors
    assert "1 runs to make, 1 at a time" in errors
    assert "[1/1] p/s seconds one fedavg seed 0: done" in errors
    assert "p/table-1: Table 1" in out
    assert (tmp_path / "out" / "p-table-1.md").read_text().startswith("## Table 1")
    with (tmp_path / "results" / "p-s.csv").open() as file:
        assert [found["label"] for found in csv.DictReader(file)] == ["fedavg"]
    again = Fork(OFFBEAT, *choice)
    out, errors = again.communicate()
    assert (again.returncode, errors) == (0, "")
    undecided = Fork(OFFBEAT, *words, "--undecided", "--workers", "1")
    out, errors = undecided.communicate()  # one seed says nothing is undecided
    assert (undecided.returncode, errors) == (0, "")
    together = Fork(OFFBEAT, *words, "--undecided", "--unpaired")
    _, errors = together.communicate()
    assert (together.returncode, errors.strip()) == (
        2,
        "offbeat: --unpaired and --undecided are not allowed together: give one after the other",
    )
    wrong = Fork(OFFBEAT, *words, "--labels", "fedprox")
    _, errors = wrong.communicate()
    assert (wrong.returncode, errors.strip()) == (
        2,
        "offbeat: --labels fedprox is unknown; known: fedavg, fedbuff",
    )


def test_the_command_makes_again_what_has_no_partner_of_its_processor(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    study = tmp_path / "p" / "s.yaml"
    study.write_text(yaml.safe_dump(DOCUMENT))
    rows = tmp_path / "results" / "p-s.csv"
    words = (
        "reproduce",
        f"{study}:table-1",
        "--results",
        str(rows.parent),
        "--columns",
        "one",
        "--workers",
        "1",
    )
    first = Fork(OFFBEAT, *words)
    assert (first.communicate()[1] != "", first.returncode) == (True, 0)
    own = Results(rows.parent).rows("p/s")
    here = next(iter(own.values())).machine
    elsewhere = {each.digest for each in own.values() if each.label == "fedavg"}
    for path in (rows, rows.with_name("p-s-levels.csv")):
        foreign = [
            line.replace(here, "Z80, 1 cores, PyTorch 2") if elsewhere & set(line.split(",")) else line
            for line in path.read_text().splitlines()
        ]
        path.write_text("\n".join(foreign) + "\n")
    again = Fork(OFFBEAT, *words, "--unpaired")
    out, errors = again.communicate()
    assert again.returncode == 0, errors
    assert "3 runs to make" in errors
    assert "of other processors" not in out
    made = Results(rows.parent).all_rows("p/s")[-3:]
    assert [found.machine for found in made] == [here] * 3
    assert [replace(found, processor=None) for found in made] == [
        replace(found, processor=None) for found in own.values() if found.label == "fedavg"
    ]


def test_a_study_of_another_device_is_run_on_the_one_that_is_asked_for(tmp_path: Path) -> None:
    absent = "mps" if torch.cuda.is_available() else "cuda"
    recipe = {**DOCUMENT["recipe"], "training": {**DOCUMENT["recipe"].get("training", {}), "device": absent}}
    (tmp_path / "p").mkdir()
    file = tmp_path / "p" / "s.yaml"
    file.write_text(yaml.safe_dump({**DOCUMENT, "recipe": recipe}))
    results = tmp_path / "results"
    words = (
        "reproduce",
        f"{file}:table-1",
        "--scale",
        "seconds",
        "--results",
        str(results),
        "--workers",
        "1",
    )
    choice = (*words, "--columns", "one", "--labels", "fedavg")
    for more, option in (((), " (else the size's training.device)"), (("--device", absent), "")):
        refused = Fork(OFFBEAT, *choice, *more)
        _, errors = refused.communicate()
        assert (refused.returncode, errors.strip()) == (
            2,
            f"offbeat: --device{option} = {absent!r} is not on this machine: choose cpu",
        )
    assert not Results(results).rows("p/s")
    made = Fork(OFFBEAT, *choice, "--device", "cpu")
    _, errors = made.communicate()
    assert made.returncode == 0, errors
    (own,) = Results(results).rows("p/s").values()
    (planned,) = study_cells(load_study(file), "seconds", columns=["one"], labels=["fedavg"])
    assert own.digest == planned.digest
    assert own.processor_name == processor_name()
    with pytest.raises(
        UsageError, match=f"^training.device = '{absent}' is not on this machine: choose cpu$"
    ):
        run_cells([planned], Results(tmp_path / "other"), 1, ignore)


def test_an_unfinished_run_is_kept_for_the_device_that_it_was_made_on(study: Study) -> None:
    cell = study_cells(study, "seconds")[0]
    places = {unfinished_name(cell.on(device)) for device in ("cpu", "cuda", "cuda:1")}
    assert places == {cell.digest, f"{cell.digest}-cuda", f"{cell.digest}-cuda-1"}


def test_sizes_that_were_not_run_are_left_out_unless_they_are_named(tmp_path: Path) -> None:
    sizes = {**DOCUMENT["sizes"], "laptop": {"not_here": "about a year"}}
    (tmp_path / "p").mkdir()
    study = tmp_path / "p" / "s.yaml"
    study.write_text(yaml.safe_dump({**DOCUMENT, "sizes": sizes}))
    found = {f"{study}:table-1": find_item(f"{study}:table-1")}
    assert _worth_running(found, "laptop", named=[*found]) == found
    assert _worth_running(found, "laptop", named=["p/table"]) == {}
    assert _worth_running(found, "seconds", named=["p/table"]) == found


def test_options_of_runs_need_an_item_and_a_place(tmp_path: Path) -> None:
    alone = Fork(OFFBEAT, "reproduce", "--undecided")
    assert alone.communicate()[1].strip() == "offbeat: --undecided needs an item: give one, a paper, or all"
    assert alone.returncode == 2
    (tmp_path / "p").mkdir()
    study = tmp_path / "p" / "s.yaml"
    study.write_text(yaml.safe_dump(DOCUMENT))
    (tmp_path / "file").write_text("")
    words = ("reproduce", f"{study}:table-1", "--scale", "seconds")
    nowhere = Fork(OFFBEAT, *words, "--results", str(tmp_path / "file" / "x"))
    errors = nowhere.communicate()[1]
    assert (nowhere.returncode, errors.count("\n")) == (2, 1)
    assert f"--results {tmp_path / 'file' / 'x'} cannot be written" in errors


@pytest.mark.thorough
def test_ctrl_c_loses_no_finished_run_and_two_processes_share_the_rest(tmp_path: Path) -> None:
    document = {**DOCUMENT, "recipe": {**DOCUMENT["recipe"], "until": {"tasks": 1500}, "seeds": 2}}
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "s.yaml").write_text(yaml.safe_dump(document))
    rows = tmp_path / "results" / "p-s.csv"
    words = (
        "reproduce",
        f"{tmp_path / 'p' / 's.yaml'}:table-1",
        "--results",
        str(rows.parent),
        "--workers",
        "1",
    )
    first = Fork(OFFBEAT, *words)
    while not rows.exists() or len(rows.read_text().splitlines()) < 2:
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate()
    assert first.returncode == 130
    assert f"the same command with --results {rows.parent} goes on" in errors
    kept = rows.read_text()
    both = [Fork(OFFBEAT, *words) for _ in range(2)]
    said = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert rows.read_text().startswith(kept)
    found = Results(rows.parent).rows("p/s").values()
    assert len(found) == len(rows.read_text().splitlines()) - 1 == 8  # no run was made twice
    assert {row.tasks for row in found} == {1500}


def test_a_metric_that_an_item_asks_the_time_of_has_levels_though_it_is_no_share(tmp_path: Path) -> None:
    table = {**DOCUMENT["items"]["table-1"], "metric": "loss", "target": 2.2}
    study, results = make_study("p/s", {**DOCUMENT, "items": {"table-1": table}}), Results(tmp_path)
    cells = [cell for cell in item_cells(study, "table-1", "seconds") if cell.column == "one"]
    run_cells(cells, results, 1, ignore)
    digests = {cell.digest for cell in cells}
    assert {key[0] for key in results.levels("p/s") if key[2:] == ("loss", "2.2")} == digests
    rows = item_rows(study, "table-1", "seconds", results)
    assert {seed for arm in rows.arms() for seed in rows.climbs(arm, "time")} == {0}
