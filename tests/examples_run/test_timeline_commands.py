"""The timeline on an algorithm's page is what the command below it gives."""

import re
import subprocess
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


def test_each_section_of_the_reference_is_a_page_that_the_search_leaves_out() -> None:
    files = pytest.importorskip("mkdocs.structure.files")
    config = SimpleNamespace(
        site_dir="site", use_directory_urls=True, plugins=SimpleNamespace(_current_plugin=None)
    )
    first = files.File.generated(config, "reference.md", content=(DOCS / "reference.md").read_text("utf-8"))
    made = hooks.on_files(files.Files([first]), config)
    pages = {file.src_uri: file.content_string for file in made}
    links = re.findall(r"\]\((reference/[\w-]+\.md)\)", pages.pop("reference.md"))
    assert sorted(links) == sorted(pages)
    assert all(text.startswith("---\nsearch:\n  exclude: true\n---\n\n# ") for text in pages.values())
    (nav,) = hooks.on_config(SimpleNamespace(repo_url="here", nav=[{"API": ["reference/*"]}])).nav
    assert [path for entry in nav["API"] for path in entry.values()] == links


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://example.org/a/offbeat.git", "https://example.org/a/offbeat"),
        ("git@example.org:a/offbeat.git", "https://example.org/a/offbeat"),
        ("/srv/git/offbeat", None),
        ("https://token@example.org/a/offbeat", None),
    ],
)
def test_the_site_links_the_repository_that_a_checkout_was_cloned_from(
    remote: str, address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    subprocess.run(["git", "remote", "add", "origin", remote], cwd=tmp_path, check=True)
    monkeypatch.setattr(hooks, "DOCS", tmp_path)
    assert hooks.origin() == address


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
