"""A paper's claims beside the runs, by hand."""

from dataclasses import replace

import pytest

from offbeat.report import Claim, Finding, claims_of, findings, group_runs, write_html
from offbeat.report.claims import finding_rows
from offbeat.verdicts.verdict import Verdict
from tests.report.report_fakes import FakeRun, evaluation

HELD, NOT_HELD, UNDECIDED = Verdict.HELD, Verdict.NOT_HELD, Verdict.UNDECIDED


def run(label: str, seed: int, *last: float, **more: object) -> FakeRun:
    """Ten seconds; only what is measured from second 8 on counts."""
    rows = [evaluation(0.0, 0.99, loss=9.0), evaluation(7.9, 0.0, loss=9.0)]
    rows += [evaluation(8.0 + i, a, loss=1 - a) for i, a in enumerate(last)]
    return FakeRun(label, seed, evaluations=rows, duration=10.0, **more)  # type: ignore[arg-type]


RUNS = [
    run("a", 0, 0.5, 0.7, 0.6),  # mean 0.6, changes 0.2 and 0.1
    run("b", 0, 0.5, 0.5, 0.5),
    run("a", 1, 0.4, 0.4, 0.4),
    run("b", 1, 0.6, 0.5, 0.7),  # mean 0.6, changes 0.1 and 0.2
    run("b", 2, 0.9, 0.9, 0.9),  # a has no such seed
]
GROUPS = group_runs(RUNS)


def cells(found: Finding) -> tuple[str, ...]:
    """What stands beside a claim of one pair."""
    (row,) = finding_rows(found)
    return row[1:]


def runs_of(recipe: dict[str, object] | None = None, **levels: tuple[float, ...]) -> dict[str, list[FakeRun]]:
    """Runs with these levels by label and seed."""
    return {
        label: [run(label, seed, level, recipe=recipe) for seed, level in enumerate(own)]
        for label, own in levels.items()
    }


def verdicts(groups: dict[str, list[FakeRun]], *claims: Claim) -> list[Verdict]:
    return [found.verdict for found in findings(groups, claims)]


def test_means_over_the_last_fifth_seed_by_seed():
    (found,) = findings(GROUPS, [Claim("a is better", "a", ["b"])])
    (pair,) = found.pairs
    assert (pair.agreeing, sorted(pair.gaps)) == (1, [0, 1])
    assert round(pair.mean, 9) == round((0.1 - 0.2) / 2, 9)
    early = "undecided: judged from 3 seeds on"
    assert cells(found) == ("a > b (accuracy)", "-5 ± 21 points", "1 of 2", early)


def test_a_lower_loss_and_smaller_changes_are_better():
    by_loss, by_change = findings(
        GROUPS, [Claim("lower", "b", ["a"], by="loss"), Claim("steady", "b", ["a"], by="change")]
    )
    assert cells(by_loss)[:3] == ("b < a (loss)", "+0.05 ± 0.21", "1 of 2")
    assert (round(by_change.pairs[0].mean, 9), by_change.pairs[0].agreeing) == (0.0, 1)
    (always,) = findings({"a": [RUNS[0]], "b": [RUNS[1]]}, [Claim("up", "a", ["b"])])
    assert cells(always)[2:] == ("1 of 1", "undecided: judged from 3 seeds on")


def test_runs_of_other_kinds_of_processor_are_not_compared():
    levels = {"a": (0.6, 0.62, 0.61, 0.9), "b": (0.5, 0.52, 0.5, 0.5)}
    groups = runs_of({"seeds": 4}, **levels)
    named = {
        label: [replace(each, processors=("Intel",)) for each in runs[:3]] for label, runs in groups.items()
    }
    named["a"].append(replace(groups["a"][3], processors=("Intel", "AMD")))
    named["b"].append(replace(groups["b"][3], processors=("Intel",)))
    (found,) = findings(named, [Claim("a is better", "a", ["b"])])
    assert sorted(found.pairs[0].gaps) == [0, 1, 2]
    assert (found.seeds, found.verdict, cells(found)[2]) == (4, HELD, "3 of 3 (1 of other processors)")
    apart = {"a": named["a"][3:], "b": named["b"][3:]}
    (found,) = findings(apart, [Claim("a is better", "a", ["b"])])
    assert cells(found)[1:3] == ("–", "0 of 0 (1 of other processors)")


A, B, WILD = (0.6, 0.621, 0.61), (0.5, 0.52, 0.511), (0.6, 0.5, 0.7)


@pytest.mark.parametrize(
    ("better", "than", "verdict"),
    [("a", "b", HELD), ("b", "a", NOT_HELD), ("c", "b", UNDECIDED), ("a", "a", UNDECIDED)],
)
def test_a_claim_is_held_or_not_by_the_rule_of_studies(better: str, than: str, verdict: Verdict):
    assert verdicts(runs_of(a=A, b=B, c=WILD), Claim("it is better", better, [than])) == [verdict]


def test_looks_follow_the_seeds_that_the_recipe_plans():
    close = {"a": (0.6, 0.62, 0.58), "b": (0.50, 0.5, 0.5)}
    claim = Claim("it is better", "a", ["b"])
    assert verdicts(runs_of(**close), claim) == [HELD]
    wide = runs_of(a=(0.6, 0.63, 0.57), b=close["b"])  # by Student's t at 5 % it would be held
    assert verdicts(wide, claim) == [UNDECIDED]
    few = {label: own[:2] for label, own in close.items()}
    assert verdicts(runs_of(**few), claim) == [UNDECIDED]
    (late,) = findings(runs_of({"seeds": 5}, **close), [claim])
    assert (late.verdict, late.seeds, late.first_look) == (UNDECIDED, 0, 5)
    (more,) = findings(runs_of(a=(*close["a"], 0.1), b=(*close["b"], 0.9)), [claim])
    assert (more.verdict, more.seeds) == (HELD, 3)  # the fourth waits for the fifth
    assert cells(more)[3] == "held by 3 seeds"
    for wrong in (0, -1, 10**30, "many", None):
        assert verdicts(runs_of({"seeds": wrong}, **close), claim) == [HELD]


def test_many_claims_ask_more_of_each():
    groups = runs_of(a=(0.6, 0.62, 0.58), b=(0.5, 0.5, 0.5), c=(0.5, 0.52, 0.49), d=(0.51, 0.49, 0.52))
    first = Claim("it is better", "a", ["b"])
    others = [Claim("so is it", x, [y]) for x, y in ("cd", "dc", "cb", "bc", "db", "bd")]
    assert verdicts(groups, first) == [HELD]
    assert verdicts(groups, first, *others)[0] == UNDECIDED


def test_a_claim_of_several_pairs_is_judged_by_their_mean():
    groups = runs_of(a=A, b=B, c=(0.6, 0.62, 0.609))
    (found,) = findings(groups, [Claim("it is better", "a", ["b", "c"])])
    rows = finding_rows(found)
    assert [row[0] for row in rows] == ["it is better", "", ""]
    assert rows[0][1:] == ("on average (accuracy)", "+5.033 points", "", "held")
    assert rows[1][1:] == ("a > b (accuracy)", "+10.00 ± 0.10 points", "3 of 3", "")
    assert rows[2][1] == "a > c (accuracy)"


def test_any_metric_is_better_as_it_says() -> None:
    rows = [[evaluation(9.0, None, auroc=a, distance=10 * a)] for a in (0.75, 0.5)]
    runs = [
        FakeRun(label, evaluations=found, duration=10.0, higher_is_better={"distance": False})
        for label, found in zip("ab", rows, strict=True)
    ]
    claims = [Claim("more", "a", ["b"], by="auroc"), Claim("less", "b", ["a"], by="distance")]
    more, less = findings(group_runs(runs), claims)
    assert cells(more)[:3] == ("a > b (auroc)", "+25 points", "1 of 1")
    assert cells(less)[:3] == ("b < a (distance)", "+2.5", "1 of 1")


def test_runs_that_have_not_finished_do_not_count():
    runs = runs_of(a=A, b=B)
    claim = Claim("it is better", "a", ["b"])
    runs["a"][0] = replace(runs["a"][0], status="interrupted")
    (found,) = findings(runs, [claim])
    assert (sorted(found.pairs[0].gaps), found.seeds, found.verdict) == ([1, 2], 0, UNDECIDED)


def test_labels_without_runs_are_left_out():
    assert findings(GROUPS, [Claim("c is better", "c", ["a"]), Claim("a", "a", ["c"])]) == []
    assert findings({"a": [FakeRun("a")], "b": [RUNS[1]]}, [Claim("no evaluations", "a", ["b"])]) == []


def test_the_page_has_them(tmp_path):
    recipe = {"claims": [{"says": "a is <better>", "better": "a", "than": ["b"], "by": "accuracy"}]}
    assert claims_of(recipe) == [Claim("a is <better>", "a", ["b"])]
    assert claims_of(None) == []
    runs = [run("a", 0, 0.6, recipe=recipe), run("b", 0, 0.5, recipe=recipe)]
    page = write_html(runs, tmp_path / "page.html").read_text("utf-8")
    assert "<td>a is &lt;better&gt;</td><td>a &gt; b (accuracy)</td><td>+10 points</td>" in page
    assert "What the paper claims" not in write_html([RUNS[0]], tmp_path / "b.html").read_text("utf-8")
