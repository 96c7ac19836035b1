"""The timeline on an algorithm's page is what the command below it gives."""

import importlib.util
import re
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.algorithms.describe import driver_needs

DOCS = Path(__file__).parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("timelines", DOCS / "timelines.py")
assert SPEC is not None
assert SPEC.loader is not None
timelines = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(timelines)
PAGES = sorted(path.stem for path in (DOCS / "algorithms").glob("*.md") if path.stem != "index")


def test_every_algorithm_has_a_page_and_a_line_in_the_table():
    pages = {name: timelines.PAGES.get(name, name) for name in ob.ALGORITHMS}
    assert sorted(set(pages.values())) == PAGES
    table = (DOCS / "algorithms" / "index.md").read_text("utf-8")
    for name, page in pages.items():
        needs = ", ".join(driver_needs(ob.ALGORITHMS[name]())) or "–"
        assert re.search(rf"^\| `{name}` \|.*\| {needs}[ ;].*\({page}\.md\) \|$", table, re.MULTILINE), name


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_its_picture_and_the_command_for_it(page: str) -> None:
    name = timelines.SHOWN.get(page, page)
    assert name in ob.ALGORITHMS
    text = (DOCS / "algorithms" / f"{page}.md").read_text("utf-8")
    assert f"](../images/timeline_{name}.png)" in text
    assert 5_000 < (DOCS / "images" / f"timeline_{name}.png").stat().st_size < 60_000
    timeline = text[text.index("## Its timeline") :].replace("\\\n", " ")
    assert re.findall(r'--set "?([^"\s]+)', timeline) == timelines.sets(name)
    assert f"--out runs/{name}\n" in timeline
