"""Tables as CSV, Markdown and LaTeX, and what they say of seeds that did not get there."""

import csv
import io
from pathlib import Path

import pytest

from offbeat.core.errors import UsageError
from offbeat.report import make_table, to_csv, to_latex, to_markdown, to_text, write_table
from offbeat.report.render import difference_cells, to_cells
from tests.report.report_fakes import FakeRun, evaluation, reaching


def runs() -> list[FakeRun]:
    """Times 100 and 200 against 50, 70 and one seed that ends at 1 s; best 0.92 and 0.96 against 0.95."""
    return [
        reaching("other_one & 100 %", 0, 100.0, best=0.92),
        reaching("other_one & 100 %", 1, 200.0, best=0.96),
        *(reaching("base", seed, t) for seed, t in enumerate((50.0, 70.0, None))),
    ]


TABLE = make_table(runs(), target=0.9, baseline="base")


def test_differences_are_paired_and_have_student_s_interval() -> None:
    other, base = TABLE.rows
    assert base.best_difference is None
    # best: −0.03, +0.01, so −0.01 ± 12.7062 · 0.0282843 / √2; times: 50 and 130, so 90 ± 12.7062 · 40
    assert other.best_difference is not None
    assert other.best_difference.interval == pytest.approx((-0.264124, 0.244124), abs=1e-5)
    assert other.time_difference is not None
    assert (other.time_difference.mean, other.time_difference.n) == (90.0, 2)
    assert other.time_difference.half == pytest.approx(508.248, abs=1e-3)
    cells = difference_cells(TABLE)
    assert cells is not None
    assert cells.heads[2:] == ("best accuracy (points)", "final (points)", "time to 90 % (s)")
    assert cells.rows == (("other_one & 100 %", "2", "-1 [-26, +24]", "+0 [+0, +0]", "+100 [-400, +600]"),)
    assert "Differences from base" in to_text(TABLE)


def test_times_that_were_not_reached_are_said_with_how_long_was_waited() -> None:
    rows = [evaluation(t, 0.5) for t in (0.0, 100.0)]
    never = [FakeRun("never", seed, evaluations=rows[: 2 - seed]) for seed in (0, 1)]
    table = make_table([*runs()[2:], *never], target=0.9)
    cells = to_cells(table)
    assert [row[4] for row in cells.rows] == ["60 ± 14, > 1", "> 100"]
    assert [row[6] for row in cells.rows] == ["2 of 3", "0 of 2"]
    assert (table.rows[1].beyond, table.rows[1].time, table.rows[1].relative) == (100.0, None, None)


def test_one_seed_is_said_to_have_no_interval() -> None:
    table = make_table([reaching("a", 0, 5.0), reaching("b", 0, 6.0, best=0.92)], target=0.9)
    cells = difference_cells(table)
    assert cells is not None
    assert cells.rows[0][1:] == ("1", "-3 (one seed)", "+0 (one seed)", "+1 (one seed)")
    assert any("one seed" in note for note in table.notes)
    assert difference_cells(make_table(runs()[:1])) is None


def test_csv_has_base_units_all_digits_and_nothing_where_there_is_nothing() -> None:
    other, base = csv.DictReader(to_csv(TABLE).splitlines())
    assert (other["label"], other["time_mean"], other["time_n"]) == ("other_one & 100 %", "150.0", "2")
    assert float(other["best_difference_low"]) == pytest.approx(-0.264124, abs=1e-5)
    assert (base["time_beyond"], base["reached"], base["best_difference_n"]) == ("1.0", "2", "0")
    assert (base["best_difference_mean"], other["time_beyond"]) == ("", "")
    (alone,) = csv.DictReader(to_csv(make_table(runs()[:1])).splitlines())
    assert (alone["best_std"], alone["best_n"], alone["time_beyond"]) == ("", "1", "")


def test_latex_is_escaped_and_has_the_rules_of_booktabs() -> None:
    text = to_latex(TABLE)
    assert text.count("\\begin{tabular}{lr") == text.count("\\toprule") == text.count("\\bottomrule") == 2
    row = next(line for line in text.splitlines() if line.startswith("other"))
    assert row.startswith("other\\_one \\& 100 \\% & 2 & 94.0 $\\pm$ 2.8 & 70 $\\pm$ 0 & 150 $\\pm$ 70 & ")
    assert row.endswith(" \\\\")
    assert "$-$1 {[}$-$26, +24{]}" in text
    assert "60 $\\pm$ 14, $>$ 1" in text
    hostile = to_latex(make_table([FakeRun("[x] *{\\evil}$^~#|\n%")]))
    assert "{[}x{]} {*}\\{\\textbackslash{}evil\\}\\$\\textasciicircum{}\\textasciitilde{}\\#" in hostile


def test_options_are_columns() -> None:
    told = [
        FakeRun("a", recipe={"training": {"lr": lr}}, evaluations=[evaluation(0.0, 0.5)]) for lr in (1, 2)
    ]
    table = make_table([*told, FakeRun("b")])
    assert [row[:3] for row in to_cells(table).rows] == [("a", "1", "1"), ("a", "2", "1"), ("b", "-", "1")]
    assert to_markdown(table).startswith("| label | lr | seeds |")
    assert [row["training.lr"] for row in csv.DictReader(to_csv(table).splitlines())] == ["1", "2", ""]
    assert table.baseline == "a lr=1"
    assert make_table(told, baseline="a lr=2").baseline == "a lr=2"
    assert make_table(told, baseline="a").baseline == "a lr=1"  # the first of that name


@pytest.mark.parametrize("name", ["table.csv", "table.md", "table.tex"])
def test_the_format_is_that_of_the_name(name: str, tmp_path: Path) -> None:
    path = write_table(TABLE, tmp_path / "deep" / name)
    expected = {"csv": to_csv, "md": to_markdown, "tex": to_latex}[name[6:]]
    assert path.read_text(encoding="utf-8") == expected(TABLE)


def test_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"let its name end with \.csv, \.md, \.tex"):
        write_table(TABLE, str(tmp_path / "table.xls"))


def test_a_table_is_a_data_frame_with_the_columns_of_the_csv_file() -> None:
    pandas = pytest.importorskip("pandas")
    frame = TABLE.to_pandas()
    written = pandas.read_csv(io.StringIO(to_csv(TABLE)))
    pandas.testing.assert_frame_equal(frame, written, check_dtype=False)
    assert frame.time_mean.tolist() == [150.0, 60.0]
