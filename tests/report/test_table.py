"""The comparison table: numbers computed by hand, and its renderings."""

import csv
import io
import math
from typing import Any

import pytest

from offbeat.core.errors import UsageError
from offbeat.report import Stat, make_table, to_csv, to_markdown, to_text
from offbeat.report.render import to_cells
from tests.report.report_fakes import FakeRun, command, evaluation, event, figure_1, reaching


def runs() -> list[FakeRun]:
    return [
        # 100, 200 s: mean 150, std (ddof 1) 70.71
        reaching("fedavg", 0, 100.0, best=0.92),
        reaching("fedavg", 1, 200.0, best=0.96),
        # 50, 70 s and one failure of three: mean 60
        reaching("fedcompass", 2, None),
        reaching("fedcompass", 0, 50.0),
        reaching("fedcompass", 1, 70.0),
        # one of two: exactly half failed
        reaching("half", 0, 10.0),
        reaching("half", 1, None),
    ]


def test_times_are_relative_to_fedcompass_when_it_is_there() -> None:
    table = make_table(runs(), target=0.9)
    assert table.baseline == "fedcompass"
    fedavg, fedcompass, half = table.rows
    assert fedavg.relative == pytest.approx((100 / 50 * 200 / 70) ** 0.5)  # the common seeds
    assert fedcompass.relative == 1.0
    assert half.relative is None
    cells = to_cells(table)
    assert cells.heads[2:5] == ("best accuracy (%)", "final (%)", "time to 90 % (s)")
    assert [row[3] for row in cells.rows] == ["70 ± 0", "63 ± 12", "60 ± 14"]
    assert [row[4] for row in cells.rows] == ["150 ± 70", "60 ± 14, > 1", "10, > 1"]
    assert [row[5] for row in cells.rows] == ["2.4x", "1.00x", "-"]
    assert [row[6] for row in cells.rows] == ["2 of 2", "2 of 3", "1 of 2"]


def test_deviations_use_ddof_1_over_seeds() -> None:
    fedavg, fedcompass, half = make_table(runs(), target=0.9).rows
    assert fedavg.time is not None
    assert (fedavg.time.mean, fedavg.time.n) == (150.0, 2)
    assert fedavg.time.std == pytest.approx(70.710678)
    assert fedavg.best is not None
    assert fedavg.best.mean == pytest.approx(0.94)
    assert fedavg.best.std == pytest.approx(0.0282843, rel=1e-5)
    assert fedcompass.time is not None
    assert fedcompass.time.std == pytest.approx(14.142136)
    assert half.time is not None
    assert (half.time.mean, half.time.std, half.time.n, half.reached) == (10.0, 0.0, 1, 1)


def test_another_baseline_can_be_named_and_the_first_is_the_fallback() -> None:
    table = make_table(runs(), target=0.9, baseline="fedavg")
    assert [row.relative for row in table.rows] == [1.0, pytest.approx((50 / 100 * 70 / 200) ** 0.5), None]
    assert make_table([reaching("b", 0, 5.0), reaching("a", 0, 5.0)], target=0.9).baseline == "b"


def test_a_baseline_that_fails_leaves_no_relative_times_and_says_so() -> None:
    table = make_table(runs(), target=0.9, baseline="half")
    assert [row.relative for row in table.rows] == [None, None, None]
    assert any("half reached the target in 1 of 2 seeds" in note for note in table.notes)


def test_a_baseline_at_the_target_from_the_start_leaves_no_relative_times() -> None:
    run = FakeRun("a", evaluations=[evaluation(0.0, 0.95)])
    table = make_table([run], target=0.9)
    assert table.rows[0].relative is None
    assert any("from the start" in note for note in table.notes)


def test_a_metric_of_which_less_is_better() -> None:
    rows = [evaluation(t, 0.9, loss=loss) for t, loss in ((0.0, 3.0), (5.0, 1.5), (9.0, 1.0), (12.0, 2.0))]
    table = make_table([FakeRun("a", evaluations=rows)], metric="loss", target=1.5)
    (row,) = table.rows
    assert (row.best, row.final, row.time) == (Stat(1.0, 0.0, 1), Stat(2.0, 0.0, 1), Stat(5.0, 0.0, 1))
    assert to_cells(table).heads[2:5] == ("best loss", "final", "time to 1.5 (s)")
    assert to_cells(table).rows[0][2:5] == ("1", "2", "5")
    assert "at loss 1.5 or less" in table.notes[0]


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf])
def test_what_is_not_finite_is_no_best_value_and_reaches_no_target(nothing: float | None) -> None:
    rows = [evaluation(0.0, None, auroc=0.5), evaluation(1.0, None, auroc=nothing)]
    (row,) = make_table([FakeRun("a", evaluations=rows)], target=0.6).rows
    assert (row.best, row.final, row.reached) == (Stat(0.5, 0.0, 1), None, 0)


def test_without_a_target_the_times_are_dashes_and_a_note_says_why() -> None:
    table = make_table(runs())
    assert {row[4:7] for row in to_cells(table).rows} == {("-", "-", "-")}
    assert "No target" in table.notes[0]


def test_runs_that_did_not_finish_and_unequal_seeds_are_noted() -> None:
    table = make_table([reaching("a", 0, 5.0, status="interrupted"), reaching("b", 1, 5.0)], target=0.9)
    assert any("a, seed 0, is interrupted" in note for note in table.notes)
    assert any("same seeds" in note for note in table.notes)


def test_missing_accuracies_are_dashes() -> None:
    table = make_table([FakeRun("a", evaluations=[evaluation(0.0, None)])], target=0.5)
    assert table.rows[0].best is None
    assert to_cells(table).rows[0] == ("a", "1", "-", "-", "-", "-", "0 of 1", "0", "0", "-", "-", "0", "0")


def test_figure_1_row() -> None:
    (row,) = to_cells(make_table([figure_1()], target=0.5)).rows
    assert row[:-2] == ("fedcompass", "1", "66", "66", "22", "1.00x", "1 of 1", "7", "13", "1.692", "0")
    # All five clients train at once.
    assert row[-2] == "5"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": 60.0}, "target = 60"),
        ({"target": 0.0}, "target = 0"),
        ({"target": 0.9, "baseline": "nobody"}, "baseline is 'nobody'"),
    ],
)
def test_wrong_options_name_themselves(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_table(runs(), **options)


def test_no_runs_are_refused() -> None:
    with pytest.raises(UsageError, match="no run"):
        make_table([])


def test_text_shows_every_cell_and_takes_labels_literally() -> None:
    table = make_table([reaching("[red]a[/red]", 0, 5.0)], target=0.9)
    text = to_text(table)
    assert "[red]a[/red]" in text
    assert "1.00x" in text


def test_markdown_escapes_what_would_break_the_table() -> None:
    lines = to_markdown(make_table([reaching("a|b\n<script>", 0, 5.0)], target=0.9)).splitlines()
    assert lines[2].startswith("| a\\|b &lt;script&gt; | 1 |")
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|") - 1


def test_csv_has_unrounded_numbers() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(make_table(runs(), target=0.9)))))
    assert {row["metric"] for row in rows} == {"accuracy"}
    assert [row["label"] for row in rows] == ["fedavg", "fedcompass", "half"]
    assert float(rows[0]["time_mean"]) == 150.0
    assert float(rows[0]["relative"]) == pytest.approx(2.390457)
    assert rows[2]["relative"] == ""
    assert rows[0]["staleness_mean"] == ""


def test_what_each_label_uses_is_beside_its_times() -> None:
    rows = [event(0.0, "joined", client=client, samples=1) for client in range(3)]
    rows += [command(0.0, "train", client=client, task=client, base=0, steps=1) for client in (0, 1)]
    rows += [event(1.0, "arrived", client=0, task=0, staleness=0)]
    rows += [command(1.0, "train", client=2, task=2, base=0, steps=1), event(2.0, "left", client=1)]
    run = FakeRun("a", written=rows, evaluations=[evaluation(2.0, 0.5, 4000)], duration=3.0)
    (row,) = make_table([run]).rows
    assert row.at_once is not None
    assert row.at_once.mean == 2
    assert row.bytes is not None
    assert row.bytes.mean == 4000 * 150
    cells = to_cells(make_table([run]))
    assert dict(zip(cells.heads, cells.rows[0], strict=True))["sent (MB)"] == "0.6"
