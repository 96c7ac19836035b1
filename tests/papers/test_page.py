"""The pages of the papers, and the tables of experiments and claims, are what the rows give."""

import re
import sys
from functools import cache
from pathlib import Path

import pytest

from offbeat import cli
from offbeat.verdicts.verdict import Verdict
from offbeat_papers.cells import study_cells
from offbeat_papers.experiments import JudgedExperiment, judge_experiments, load_experiments, rows_of
from offbeat_papers.load import all_items, make_study
from offbeat_papers.page import Items, render_page, rows_text, write_pages
from offbeat_papers.paper_page import render_paper, with_numbers
from offbeat_papers.rows import Results
from offbeat_papers.tables import claim_grid, experiment_grid
from offbeat_papers.texts import markdown
from tests.papers.study_files import DOCUMENT, row

ROOT = Path(__file__).parents[2]
RESULTS = Results(ROOT / "papers" / "results")
pytestmark = pytest.mark.xdist_group("papers")  # the studies are read, and their rows judged, once


@cache
def judged_rows() -> tuple[JudgedExperiment, ...]:
    """The experiments by the rows of the repository."""
    return tuple(judge_experiments(RESULTS))


def reached_at(seconds: float) -> dict[str, dict[str, tuple[float, int, int, int]]]:
    """An accuracy of a half after some seconds."""
    return {"accuracy": {"0.5": (seconds, 1, 3, 100)}}


def rendered(results: Results, items: Items) -> str:
    """The page of all papers, and the tables of experiments and of claims, one after another."""
    judged = judge_experiments(results, items)
    tables = experiment_grid(judged), claim_grid(judged)
    return "\n".join([render_page(results, judged, items), *map(markdown, tables)])


def claims_of(text: str) -> dict[str, tuple[str, ...]]:
    """By claim what is folded away, the paper's effect, ours, and the verdict."""
    found = re.findall(r"\*\*(.+?)\*\*\..*?<details>(.*)</details> \| (.*?) \| (.*?) \| (.*?) \|\n", text)
    return {name: tuple(rest) for name, *rest in found}


def test_the_pages_in_the_documentation_are_what_the_rows_give(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    judged = judged_rows()
    monkeypatch.setattr("offbeat_papers.page.judge_experiments", lambda *_: list(judged))
    written = write_pages(RESULTS, tmp_path / "papers.md")
    names = [path.relative_to(tmp_path).as_posix() for path in written]
    pages = ["papers.md", *(f"papers/{paper}.md" for paper in load_experiments().papers)]
    assert names[: len(pages)] == pages
    text = "".join(path.read_text(encoding="utf-8") for path in written[1 : len(pages)])
    assert re.findall(r"!\[[^\]]*\]\((.*?)\)", text) == [
        name.removeprefix("papers/") for name in names[len(pages) :] if name.startswith("papers/")
    ]
    assert all((ROOT / "docs" / name).is_file() for name in names)
    for path, name in zip(written, pages, strict=False):
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert path.read_text(encoding="utf-8") == page, "offbeat reproduce --page docs/papers.md"


def test_there_are_57_experiments_and_each_item_belongs_to_one() -> None:
    experiments = load_experiments()
    names = [experiment.name for experiment in experiments.experiments]
    assert len(set(names)) == len(names) == 57
    assert {experiment.paper for experiment in experiments.experiments} == set(experiments.papers)
    papers = [name.partition("/")[0] for name in names]
    assert [papers.count(paper) for paper in experiments.papers] == [31, 9, 11, 6]
    for experiment in experiments.experiments:
        assert experiment.test is None or (ROOT / experiment.test).is_file()


def test_every_item_of_a_papers_studies_is_an_experiments_or_explains_one() -> None:
    names = [experiment.name for experiment in load_experiments().experiments]
    for item, (study, own) in all_items().items():
        paper = item.partition("/")[0]
        if paper in load_experiments().papers:
            explained = [f"{paper}/{name}" for name in study.items[own].explains]
            assert set(explained) <= set(names), item
            assert explained or any(item == name or item.startswith(f"{name}-") for name in names), item


def test_the_page_of_a_paper_has_ten_of_its_claims() -> None:
    for name, paper in load_experiments().papers.items():
        own = [each for each in judged_rows() if each.experiment.paper == name]
        text = render_paper(paper, own)
        shown = re.findall(rf"^\| ({name}/[\w-]+) \| .*\*\*.+\*\*", text, re.MULTILINE)
        assert shown == [f"{name}/{claim.partition('#')[0]}" for claim in paper.claims]
        assert len(set(paper.claims)) == 10


def test_the_numbers_of_a_papers_text_are_those_of_rows(tmp_path: Path) -> None:
    judged = judged_rows()
    for name, paper in load_experiments().papers.items():
        own = [each for each in judged if each.experiment.paper == name]
        for text in (paper.gain, paper.rows, paper.finding):
            found = with_numbers(text, own)
            assert "{" not in found
            assert found.count("–") == text.count("–"), f"{name}: an effect that is not measured"
            typed = re.sub(r"\{[^}]*\}|\(the\s+paper[^)]*\)", "", text)
            assert not re.search(r"\d(\.\d+)?x|\b\d+(\.\d+)? points", typed), f"{name}: a typed number"
    study = make_study("fedfa/s", DOCUMENT)
    results = Results(tmp_path)
    for cell in study_cells(study, "laptop"):
        cost = (1.0 if cell.label == "fedbuff" else 2.0) * (1.5 if cell.column == "one" else 1.0)
        results.append(row(cell.digest, study="fedfa/s", label=cell.label, reached=reached_at(cost)), [])
    known = judge_experiments(results, {"fedfa/table-2": (study, "table-1")})
    text = "{+table-1#1.mean}, {+table-1#1.largest}; {-table-1#1.mean}, {+table-1#2.mean}, {+table-9#1.least}"
    assert with_numbers(text, known) == "2.0x (undecided), 2.0x; –, –, –"
    text = "{table-1#1.verdict}, {table-1#1.reached}, {table-1#3.verdict}"
    assert with_numbers(text, known) == "undecided, fedbuff 6 of 6, fedavg 6 of 6, –"


def test_entries_of_a_list_are_wrapped_each_by_itself() -> None:
    text = "Two\nlines.\n\n- one\n  entry\n- " + "long " * 30 + "\n\nAnd after."
    first, second, third = with_numbers(text, []).split("\n\n")
    assert (first, third) == ("Two lines.", "And after.")
    one, *rest = second.split("\n")
    assert one == "- one entry"
    assert [line[:6] for line in rest] == ["- long", "  long"]


def test_an_experiment_has_the_verdict_of_its_items(tmp_path: Path) -> None:
    study = make_study("fedfa/s", DOCUMENT)
    made_up = make_study("fedfa/t", {**DOCUMENT, "no_real_data": "The data are generated."})
    results = Results(tmp_path)
    judged = {
        j.experiment.name: j for j in judge_experiments(results, {"fedfa/table-2-digits": (study, "table-1")})
    }
    assert judged["fedfa/table-2"].verdict == Verdict.NOT_RUN
    assert judged["fedcompass/figure-20"].verdict == Verdict.HELD
    assert judged["fedcompass/table-18"].verdict == Verdict.NO_REAL_DATA
    found = judge_experiments(results, {"fedfa/table-2": (made_up, "table-1")})
    assert {j.experiment.name: j for j in found}["fedfa/table-2"].verdict == Verdict.NO_REAL_DATA
    text = rendered(results, {"fedfa/table-2-digits": (study, "table-1")})
    assert "| [FedFa](papers/fedfa.md) | table-2: seconds to target | not run | 1 not run | 0 |" in text
    stand_in = judge_experiments(results, {"fedcompass/table-18-digits": (study, "table-1")})
    assert {j.experiment.name: j for j in stand_in}["fedcompass/table-18"].verdict == Verdict.NO_REAL_DATA
    details, *effects = claims_of(text)["FedBuff is faster"]
    assert effects == ["median ∞, 2.00x to ∞", "–", "not run"]
    assert "on average: not run<br>every pair: not run<br>pairs ahead: 2 pairs<br>runs: none<br>" in details


def test_pairs_in_which_the_papers_own_numbers_are_unlike_its_claim_are_told(tmp_path: Path) -> None:
    claim = {"says": "FedAvg is faster", "better": "fedavg", "than": ["fedbuff"]}
    close = claim | {"says": "FedAvg is not much slower", "margin": -0.6}
    item = {**DOCUMENT["items"]["table-1"], "claims": [claim, close]}
    item["numbers"] = {"one": {"fedavg": 1.0, "fedbuff": 2.0}, "two": {"fedavg": 2.0, "fedbuff": 1.0}}
    study = make_study("fedfa/s", {**DOCUMENT, "items": {"table-1": item}})
    text = rendered(Results(tmp_path), {"fedfa/table-2": (study, "table-1")})
    claims = claims_of(text)
    assert claims["FedAvg is faster"][1] == "median 1.00x, 0.50x to 2.00x; so in 1 of 2"
    assert claims["FedAvg is not much slower"][1] == "median 1.00x, 0.50x to 2.00x"


def test_the_counts_have_the_processor_hours_of_the_rows(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for number in range(3):
        results.append(row(f"d{number}", study="fedfa/s", processor=1800.0 if number else None), [])
    text = rendered(results, {"fedfa/table-2": (make_study("fedfa/s", DOCUMENT), "table-1")})
    assert "| **all** | 4 (4 worked examples) | 0 | 0 |" in text
    assert "| 57 | 1.0 |" in text


def test_an_item_that_explains_an_experiment_is_shown_with_it_and_does_not_count(tmp_path: Path) -> None:
    item = {**DOCUMENT["items"]["table-1"], "explains": ["table-2"]}
    why = make_study("fedfa/s", {**DOCUMENT, "items": {"why": item}})
    items = {"fedfa/why": (why, "why")}
    (judged,) = (j for j in judge_experiments(Results(tmp_path), items) if j.causes)
    assert (judged.experiment.name, judged.items, judged.verdict) == ("fedfa/table-2", (), Verdict.NOT_RUN)
    generated = {"fedfa/table-2": (make_study("fedfa/t", {**DOCUMENT, "no_real_data": "None."}), "table-1")}
    text = rendered(Results(tmp_path), items | generated)
    assert "| [FedFa](papers/fedfa.md) | cause of table-2 | Table 1: **FedBuff is faster**." in text


def test_every_claim_that_is_not_held_names_the_experiment_that_shows_its_cause() -> None:
    for each in judged_rows():
        shown = {
            cause.rows.name for cause in each.causes
            if any(claim.verdict != Verdict.NOT_RUN for claim in cause.claims)
        }  # fmt: skip
        for item in each.items:
            for claim in item.claims:
                named = set(re.findall(r"cause-[\w-]+", claim.claim.cause or ""))
                if claim.verdict == Verdict.NOT_HELD:
                    assert named & shown, f"{item.rows.full_name}: {claim.claim.says}"
                assert named <= {cause.rows.name for cause in each.causes}, f"{item.rows.full_name}: {named}"


def test_a_cause_is_told_while_its_claim_is_not_held(tmp_path: Path) -> None:
    claim = {"says": "FedBuff is faster", "better": "fedbuff", "than": ["fedavg"], "cause": "It waits."}
    item = {**DOCUMENT["items"]["table-1"], "claims": [claim]}
    study = make_study("fedfa/s", {**DOCUMENT, "items": {"table-1": item}})
    items = {"fedfa/table-2": (study, "table-1")}
    results = Results(tmp_path)
    assert "It waits." not in rendered(results, items)  # not run
    for cell in study_cells(study, "laptop"):
        cost = (1.0 if cell.label == "fedavg" else 2.0) + 0.01 * cell.seed
        results.append(row(cell.digest, study="fedfa/s", label=cell.label, reached=reached_at(cost)), [])
    text = rendered(Results(tmp_path), items)
    details, *_, verdict = claims_of(text)["FedBuff is faster"]
    assert verdict == "not held"
    assert "<br>It waits.<br>" in details
    other = Results(tmp_path / "other")
    for cell in study_cells(study, "laptop"):
        cost = (2.0 if cell.label == "fedavg" else 1.0) + 0.01 * cell.seed
        other.append(row(cell.digest, study="fedfa/s", label=cell.label, reached=reached_at(cost)), [])
    text = rendered(other, items)
    assert "It waits." not in text
    assert "| held |" in text


def test_distinct_claims_are_counted_by_answer(tmp_path: Path) -> None:
    claims = [
        {"says": "FedBuff is faster", "better": "fedbuff", "than": ["fedavg"]},
        {"says": "FedBuff gets there first", "better": "fedbuff", "than": ["fedavg"]},
        {"says": "always", "better": "fedbuff", "than": ["fedavg"], "quantifier": "every"},
        {"says": "FedAvg is faster", "better": "fedavg", "than": ["fedbuff"]},
    ]
    item = {**DOCUMENT["items"]["table-1"], "claims": claims}
    study = make_study("fedfa/s", {**DOCUMENT, "items": {"table-1": item}})
    results = Results(tmp_path)
    for cell in study_cells(study, "laptop"):  # much faster in one column, sometimes in the other
        costs = (9.0, 1.0) if cell.column == "one" else ((2.0, 2.1), (2.0, 1.9), (2.0, 2.0))[cell.seed]
        cost = costs[cell.label == "fedbuff"] * (1 + 0.01 * cell.seed * (cell.label == "fedavg"))
        arm = {"column": cell.column, "label": cell.label, "seed": cell.seed}
        results.append(row(cell.digest, study="fedfa/s", **arm, reached=reached_at(cost)), [])
    text = rendered(results, {"fedfa/table-2": (study, "table-1"), "fedfa/table-3": (study, "table-1")})
    assert "| **all** | 1 | 1 | 0 | 1 | 0 | 0 | 3 | 8 |" in text
    assert "| all, if they spoke of on average | 1 | 1 | 0 | 0 | 0 | 0 | 2 | 8 |" in text
    assert claims_of(text)["always"][-1] == "undecided (every pair)"
    assert "<br>would have shown: " in claims_of(text)["always"][0]
    assert (
        "2 of the 57 experiments have runs on real data. 1 of these use the runs of another experiment"
        in text
    )
    assert "| the runs of table-2 again |" in text


def test_a_cause_of_two_experiments_is_told_once(tmp_path: Path) -> None:
    item = {**DOCUMENT["items"]["table-1"], "explains": ["table-2", "table-3"]}
    why = make_study("fedfa/s", {**DOCUMENT, "items": {"why": item}})
    text = rendered(Results(tmp_path), {"fedfa/why": (why, "why")})
    assert text.count("| cause of table-2, table-3 | Table 1: **FedBuff is faster**.") == 1
    assert text.count("**FedBuff is faster**") == 1


def test_claims_that_say_the_same_are_told_apart_by_their_label(tmp_path: Path) -> None:
    pairs = (("fedbuff", "fedavg"), ("fedavg", "fedbuff"))
    claims = [{"says": "it is not slower", "better": better, "than": [other]} for better, other in pairs]
    item = {**DOCUMENT["items"]["table-1"], "claims": claims}
    study = make_study("fedfa/s", {**DOCUMENT, "items": {"table-1": item}})
    text = rendered(Results(tmp_path), {"fedfa/table-2": (study, "table-1")})
    names = {"it is not slower (fedbuff against fedavg)", "it is not slower (fedavg against fedbuff)"}
    assert claims_of(text).keys() == names


def test_the_command_lists_items_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def call(*words: str) -> tuple[int, str]:
        command = ["offbeat", "reproduce", *words, "--results", str(tmp_path / "results")]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capfd.readouterr()
        return int(end.value.code or 0), said.out + said.err

    listed = call()
    assert listed[0] == 0
    assert f"rows in {tmp_path / 'results'}" in listed[1]
    page = tmp_path / "papers.md"
    code, said = call("--page", str(page))
    assert code == 0
    assert said.splitlines()[:2] == [f"wrote {page}", f"wrote {tmp_path / 'papers' / 'fedcompass.md'}"]
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Do the papers hold?")
    assert "Of 0 distinct claims" in text
    assert call("all", "--scale", "huge") == (
        2,
        "offbeat: --scale huge is unknown; known: laptop, paper, seconds\n",
    )


def test_the_page_says_of_which_commits_and_processors_the_runs_are() -> None:
    rows = rows_of(item for each in judged_rows() for item in (*each.items, *each.causes))
    text = rows_text(rows)
    assert sum(map(int, re.findall(r"(\d+) ran on ", text))) == len(rows)
    marked = [row for row in rows if row.commit_state != "clean"]
    assert 0 < len(marked) < len(rows)
    assert f" {len(marked)} runs are from commits that nobody can check out" in text


def test_runs_whose_commit_cannot_be_checked_out_are_marked(tmp_path: Path) -> None:
    study = make_study("fedfa/s", DOCUMENT)
    results = Results(tmp_path)
    for number, cell in enumerate(study_cells(study, "laptop")):
        arm = {"column": cell.column, "label": cell.label, "seed": cell.seed}
        commit = "0123456789ab-dirty" if number < 2 else "0123456789ab"
        results.append(row(cell.digest, study="fedfa/s", commit=commit, **arm), [])
    text = rendered(results, {"fedfa/table-2": (study, "table-1")})
    assert "| 12 (†2) |" in text
    assert claims_of(text)["FedBuff is faster"][-1].endswith(" †")
    assert (
        "2 runs are from commits that nobody can check out. For 2 of these runs, the checkout had changes"
        in text
    )


def test_an_effect_in_a_text_is_marked_if_a_run_of_it_cannot_be_made_again(tmp_path: Path) -> None:
    study, results = make_study("fedfa/s", DOCUMENT), Results(tmp_path)
    for cell in study_cells(study, "laptop"):
        cost = 1.0 if cell.label == "fedbuff" else 2.0
        commit = "c0ffee0-dirty" if (cell.label, cell.seed) == ("fedbuff", 0) else "c0ffee0"
        made = row(cell.digest, study="fedfa/s", label=cell.label, reached=reached_at(cost), commit=commit)
        results.append(made, [])
    known = judge_experiments(results, {"fedfa/table-2": (study, "table-1")})
    assert with_numbers("{+table-1#1.mean}", known).startswith("2.0x†")


def test_an_effect_in_a_text_says_that_only_an_earlier_look_decided(tmp_path: Path) -> None:
    study, results = make_study("fedfa/s", DOCUMENT), Results(tmp_path)
    for cell in study_cells(study, "laptop", seeds=5):
        slow = (4.0, 4.1, 4.2, 0.1, 0.1)[cell.seed]
        cost = 1.0 if cell.label == "fedbuff" else slow
        arm = {"study": "fedfa/s", "label": cell.label, "column": cell.column, "seed": cell.seed}
        results.append(row(cell.digest, **arm, reached=reached_at(cost)), [])
    known = judge_experiments(results, {"fedfa/table-2": (study, "table-1")})
    sign = "-" if with_numbers("{+table-1#1.mean}", known) == "–" else "+"
    assert with_numbers(f"{{{sign}table-1#1.mean}}", known).endswith("x (held at 3 seeds)")
