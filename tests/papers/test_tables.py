"""The tables of the site: every claim, experiment, rank and run, and their CSV files."""

import csv
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from offbeat_papers.rows import Results
from offbeat_papers.tables import site_tables, write_csv_files
from offbeat_papers.texts import Grid
from tests.papers.test_page import RESULTS, ROOT, judged_rows

pytestmark = pytest.mark.xdist_group("papers")  # the studies are read, and their rows judged, once


@cache
def tables() -> Mapping[str, Grid]:
    """The tables by the rows of the repository."""
    return site_tables(RESULTS, judged_rows())


def test_every_table_is_on_the_page_and_its_rows_are_whole() -> None:
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^<!-- table: (\w+) -->$", page, re.MULTILINE)) == sorted(tables())
    for name, (heads, *rows) in tables().items():
        assert rows, name
        assert {len(row) for row in rows} == {len(heads)}, name


def test_each_claim_has_a_row() -> None:
    heads, *rows = tables()["claims"]
    assert heads == ["paper", "experiment", "claim", "in the paper", "here", "verdict"]
    judged = judged_rows()
    causes = {item.rows.full_name: item for each in judged for item in each.causes}
    items = [item for each in judged for item in each.items]
    assert len(rows) == sum(len(item.claims) for item in (*items, *causes.values()))
    own = [row for row in rows if not row[1].startswith("cause of ")]
    assert len({tuple(row[:3]) for row in own}) == len(own)  # no two claims of an experiment are named alike
    for link, _, says, *_, verdict in rows:
        page = re.fullmatch(r"\[.+\]\((papers/\w+\.md)\)", link)
        assert page
        assert (ROOT / "docs" / page[1]).is_file()
        assert not says.startswith("ours: ")
        assert "`offbeat reproduce " in says
        known = "held|not held|no difference|undecided|not run|no real data here"
        assert re.fullmatch(rf"({known})( \((every pair|most pairs|some pair)\))?( †)?", verdict)


def test_each_run_of_a_label_in_a_setting_counts_once() -> None:
    heads, *rows = tables()["runs"]
    assert heads[:5] == ["study", "size", "setting", "label", "runs"]
    assert len({tuple(row[:4]) for row in rows}) == len(rows)
    assert all(int(row[4]) > 0 for row in rows)


def test_the_csv_files_have_no_markup(tmp_path: Path) -> None:
    write_csv_files(tables(), judged_rows(), tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(tables())
    for name, grid in tables().items():
        with (tmp_path / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            heads, *rows = csv.reader(file)
        if name == "claims":
            assert heads[:4] == ["paper", "experiment", "item", "size"]
        else:
            assert (heads, len(rows)) == (grid[0], len(grid) - 1)
            assert not any("**" in cell or "](" in cell for row in rows for cell in row)


def test_without_rows_the_tables_have_heads(tmp_path: Path) -> None:
    made = site_tables(Results(tmp_path), judged_rows()[:1])
    assert made["ranks"][0][:2] == ["data sets", "algorithm"]
