"""Every command that installs Offbeat comes from one variable."""

import re
import runpy
from pathlib import Path

import pytest

from offbeat.core.installation import ON_INDEX

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "install_lines.py"))
with_commands, pages = SCRIPT["with_commands"], list(SCRIPT["pages"]())
LITERAL = re.compile(r"pip\s+install\s+(?:-e )?[\\\"'(]*(?:offbeat\b|\.)")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_pages_have_commands() -> None:
    assert {"README.md", "docs/index.md", "examples/lora.py", "papers/README.md"} <= set(map(named, pages))
    assert sum(bool(LITERAL.search(path.read_text("utf-8"))) for path in pages) > 10


@pytest.mark.parametrize("path", pages, ids=named)
def test_each_command_of_a_page_is_what_the_variable_makes(path: Path) -> None:
    text = path.read_text("utf-8")
    assert with_commands(text) == text, "run python scripts/install_lines.py"


@pytest.mark.parametrize("path", pages, ids=named)
def test_a_page_changes_over_to_an_index_and_back(path: Path) -> None:
    text = path.read_text("utf-8")
    there = with_commands(text, True)
    assert not re.search(r"pip\s+install -e", there)
    assert "in a checkout" not in "".join(re.findall(r"^(?:\$ )?pip install.*", there, re.MULTILINE))
    assert with_commands(there, True) == there
    assert with_commands(there, ON_INDEX) == text


def test_the_source_has_no_command_of_its_own() -> None:
    source = {path for folder in ("src", "papers/src") for path in (ROOT / folder).rglob("*.py")}
    source.remove(ROOT / "src" / "offbeat" / "core" / "installation.py")
    assert [named(path) for path in sorted(source) if LITERAL.search(path.read_text("utf-8"))] == []


def test_commands_are_found_in_blocks_in_sentences_and_across_lines() -> None:
    text = (
        "```sh\npip install '.[net,digits]'\n$ pip install offbeat-papers\n```\n"
        "It needs `pip\ninstall \"offbeat[hf]\"`, or `pip install 'offbeat-papers[parquet]'`.\n"
        "pip install torch\n`pip install ./offbeat-0.1.0.whl` and `pip install offbeats`\n"
    )
    assert with_commands(text, False) == (
        '```sh\npip install -e ".[net,digits]"   # in a checkout\n'
        "$ pip install -e . -e ./papers   # in a checkout\n```\n"
        'It needs `pip\ninstall -e ".[hf]"`, or `pip install -e "./papers[parquet]"`.\n'
        "pip install torch\n`pip install ./offbeat-0.1.0.whl` and `pip install offbeats`\n"
    )
    assert 'pip install "offbeat[net,digits]"\n$ pip install offbeat-papers\n```' in with_commands(text, True)
