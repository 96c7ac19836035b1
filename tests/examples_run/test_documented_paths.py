"""Every file of the repository that the documentation names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "papers", "tests", "docs", "benchmarks", "examples", "scripts", "deploy")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SUFFIX = r"\.(?:py|md|proto|sh|txt|toml|yaml|css|js)\b"
IN_BACKTICKS = re.compile(rf"`([\w.-]+(?:/[\w.-]+)*/[\w-]+{SUFFIX})`")  # also from a folder of the package on
FROM_THE_ROOT = re.compile(rf"(?<![\w/.-])((?:{'|'.join(FOLDERS)})/[\w./-]+?{SUFFIX})")  # also in commands
MADE_BY_THE_READER = {"src/offbeat/algorithms/deadline.py", "docs/algorithms/fedavg_deadline.md"}


def named_files(page: str) -> set[str]:
    """The paths of files that a page names, but for placeholders such as `on_NAME.py`."""
    found = {match for pattern in (IN_BACKTICKS, FROM_THE_ROOT) for match in pattern.findall(page)}
    return {path for path in found if "NAME" not in path} - MADE_BY_THE_READER


@pytest.fixture(scope="module")
def files() -> list[str]:
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    return ["/" + path.relative_to(ROOT).as_posix() for path in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_files_that_a_page_names_exist(page: Path, files: list[str]) -> None:
    missing = [
        name for name in named_files(page.read_text()) if not any(file.endswith("/" + name) for file in files)
    ]
    assert missing == []


def test_paths_are_found_in_prose_and_in_commands() -> None:
    page = "See `net/wire/gone.py`; run\n    python benchmarks/none.py --out x\nand `peers/on_NAME.py`."
    assert named_files(page) == {"net/wire/gone.py", "benchmarks/none.py"}
