"""A paper's claims beside the runs, by hand."""

from offbeat.report import Claim, claims_of, findings, group_runs, write_html
from offbeat.report.claims import cells
from tests.report.report_fakes import FakeRun, evaluation


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


def test_means_over_the_last_fifth_seed_by_seed():
    (found,) = findings(GROUPS, [Claim("a is better", "a", ["b"])])
    assert (found.agreeing, found.seeds) == (1, 2)
    assert round(found.mean, 9) == round((0.1 - 0.2) / 2, 9)
    assert cells(found) == ("a > b (accuracy)", "-5 ± 21 points", "1 of 2", "undecided")


def test_a_lower_loss_and_smaller_changes_are_better():
    by_loss, by_change = findings(
        GROUPS, [Claim("lower", "b", ["a"], by="loss"), Claim("steady", "b", ["a"], by="change")]
    )
    assert cells(by_loss) == ("b < a (loss)", "+0.05 ± 0.21", "1 of 2", "undecided")
    assert (round(by_change.mean, 9), by_change.agreeing) == (0.0, 1)
    (always,) = findings({"a": [RUNS[0]], "b": [RUNS[1]]}, [Claim("up", "a", ["b"])])
    assert cells(always)[2:] == ("1 of 1", "undecided")  # one seed decides nothing


def test_a_gap_is_held_or_not_by_student_s_interval():
    levels = {"a": (0.6, 0.62, 0.61), "b": (0.5, 0.53, 0.5), "c": (0.6, 0.5, 0.7)}
    runs = group_runs([run(label, seed, x) for label, own in levels.items() for seed, x in enumerate(own)])

    def verdict(better: str, than: str) -> str:
        (found,) = findings(runs, [Claim("it is better", better, [than])])
        return cells(found)[3]

    assert [verdict("a", "b"), verdict("b", "a"), verdict("c", "b")] == ["held", "not held", "undecided"]
    assert verdict("a", "a") == "undecided"


def test_any_metric_is_better_as_it_says() -> None:
    rows = [[evaluation(9.0, None, auroc=a, distance=10 * a)] for a in (0.75, 0.5)]
    runs = [
        FakeRun(label, evaluations=found, duration=10.0, higher_is_better={"distance": False})
        for label, found in zip("ab", rows, strict=True)
    ]
    claims = [Claim("more", "a", ["b"], by="auroc"), Claim("less", "b", ["a"], by="distance")]
    more, less = findings(group_runs(runs), claims)
    assert cells(more) == ("a > b (auroc)", "+25 points", "1 of 1", "undecided")
    assert cells(less) == ("b < a (distance)", "+2.5", "1 of 1", "undecided")


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
