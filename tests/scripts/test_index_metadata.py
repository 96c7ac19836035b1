"""The README's links and the addresses of the project on a package index."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "index_metadata.py"))
absolute_links = SCRIPT["absolute_links"]
HERE = "https://example.org/someone/offbeat"


def test_pictures_are_raw_files_and_links_are_pages_of_a_tag() -> None:
    text = (
        "![a [b]](docs/x.png) [guide](docs/run.md#one), [out](https://example.com), "
        "[![p](a.png)](CITATION.cff) [up](#top)"
    )
    assert absolute_links(text, HERE, "v1.2") == (
        f"![a [b]]({HERE}/raw/v1.2/docs/x.png) [guide]({HERE}/blob/v1.2/docs/run.md#one), "
        "[out](https://example.com), "
        f"[![p]({HERE}/raw/v1.2/a.png)]({HERE}/blob/v1.2/CITATION.cff) [up](#top)"
    )


def test_every_link_of_the_readme_has_a_file_and_becomes_absolute() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", readme)
    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).is_file()] == []
    assert re.findall(r"\]\((?!https://|#)", absolute_links(readme, HERE, "main")) == []


def test_the_python_of_the_readme_works() -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["run"].summary.versions == 40  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_claims_are_counted_as_the_findings_count_them(page: str) -> None:
    findings = " ".join((ROOT / "docs" / "papers.md").read_text("utf-8").split())
    counts = r"Of (\d+) distinct claims .*?, (\d+) are held, (\d+) are not held, .*? (\d+) are undecided"
    counted = re.search(counts, findings)
    assert counted
    row = "| {}: {} held, {} not held, {} undecided |".format(*counted.groups())
    assert row in (ROOT / page).read_text("utf-8")


def test_the_addresses_are_added_to_both_projects(tmp_path: Path) -> None:
    (tmp_path / "papers").mkdir()
    for name in ("README.md", "pyproject.toml", "papers/pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"), encoding="utf-8")
    SCRIPT["rewrite"](tmp_path, HERE, "v1.2")
    for name in ("pyproject.toml", "papers/pyproject.toml"):
        made, before = (tomllib.loads((folder / name).read_text("utf-8")) for folder in (tmp_path, ROOT))
        assert made["project"].pop("urls") == {
            "Documentation": f"{HERE}/tree/v1.2/docs",
            "Source": HERE,
            "Issues": f"{HERE}/issues",
            "Changelog": f"{HERE}/blob/v1.2/CHANGELOG.md",
        }
        assert made == before
    with pytest.raises(SystemExit, match=r"has \[project.urls\] already"):
        SCRIPT["rewrite"](tmp_path, HERE, "v1.2")
