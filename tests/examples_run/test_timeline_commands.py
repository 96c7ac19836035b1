"""The timeline on an algorithm's page is what the command below it gives."""

import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import offbeat as ob
from offbeat.algorithms.describe import driver_needs
from tests.script_modules import load_script

DOCS = Path(__file__).parents[2] / "docs"


def module(name: str) -> ModuleType:
    return load_script(DOCS / f"{name}.py", f"docs_{name}")


hooks, timelines = module("hooks"), module("timelines")
PAGES = sorted(path.stem for path in (DOCS / "algorithms").glob("*.md") if path.stem != "index")


def test_every_algorithm_has_a_page_and_a_line_in_the_table():
    pages = {name: timelines.PAGES.get(name, name) for name in ob.ALGORITHMS}
    assert sorted(set(pages.values())) == PAGES
    assert "<!-- algorithms -->" in (DOCS / "algorithms" / "index.md").read_text("utf-8")
    table = "\n".join(hooks.algorithms())
    for name, page in pages.items():
        needs = ", ".join(driver_needs(ob.ALGORITHMS[name]())) or "–"
        assert re.search(rf"^\| `{name}` \|.*\| {needs}[ ;].*\({page}\.md\) \|$", table, re.MULTILINE), name


def test_the_navigation_has_every_page_once() -> None:
    config = SimpleNamespace(
        repo_url=None, nav=[{"Home": "index.md"}, {"Algorithms": ["first", "algorithms/*", "last"]}]
    )
    first, *kinds, last = hooks.on_config(config).nav[1]["Algorithms"]
    assert (first, last) == ("first", "last")
    assert [next(iter(kind)) for kind in kinds] == ["Synchronous", "Asynchronous", "Semi-asynchronous"]
    pages = [
        page for kind in kinds for entries in kind.values() for entry in entries for page in entry.values()
    ]
    assert sorted(pages) == sorted(f"algorithms/{page}.md" for page in PAGES)


REFERENCE = SimpleNamespace(file=SimpleNamespace(src_uri="reference.md"))


def test_the_reference_lists_what_is_public() -> None:
    page = hooks.on_page_markdown((DOCS / "reference.md").read_text("utf-8"), REFERENCE)
    listed = re.findall(r"^::: (\S+)$", page, re.MULTILINE)
    assert len(listed) == len(set(listed))
    shown = {name.rpartition(".")[2] for name in listed}
    assert set(ob.ALGORITHMS) <= shown
    assert {"simulate", "Schedule", "SumOfDeltas", "CompassSchedule", "Controls", "LearnedTiming"} <= shown
    assert not {name for name in listed if any(part.startswith("_") for part in name.split("."))}


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
