"""A command that is an option of another one now names it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from offbeat.cli.commands import app
from offbeat.cli.moved import MOVED, OPTIONS
from tests.cli.answer import Answer

PAGE = Path(__file__).parents[2] / "docs" / "run.md"
GROUP: Any = get_command(app)


@pytest.mark.parametrize("old", MOVED)
def test_the_old_word_names_the_new_command(old: str, offbeat: Callable[..., Answer]) -> None:
    line = f"offbeat: {old} is now `{MOVED[old]}`\n"
    for words in ((), ("--help",), ("some/run", "--unknown", "x")):
        assert offbeat(old, *words) == (2, "", line)


@pytest.mark.parametrize("old", MOVED)
def test_the_new_command_has_the_options_that_the_error_names(old: str) -> None:
    assert old not in GROUP.list_commands(None)
    program, command, *words = MOVED[old].split()
    options = {name for parameter in GROUP.get_command(None, command).params for name in parameter.opts}
    assert program == "offbeat"
    assert {word for word in words if word.startswith("-")} <= options


def test_the_page_lists_what_moved() -> None:
    section = PAGE.read_text("utf-8").partition("## What moved\n")[2].partition("| command |")[0]
    rows = re.findall(r"^\| `([\w-]+)[^`]*` \| `(.+?)`", section, re.MULTILINE)
    assert dict(rows) == MOVED


@pytest.mark.parametrize(
    ("command", "old"), [(command, old) for command, options in OPTIONS.items() for old in options]
)
def test_the_error_of_an_old_option_names_the_new_one(
    command: str, old: str, offbeat: Callable[..., Answer]
) -> None:
    known = {name for parameter in GROUP.get_command(None, command).params for name in parameter.opts}
    assert old not in known
    instead = OPTIONS[command][old]
    assert instead.split()[0] in known
    line = offbeat(command, "x", old, "y").complaint()
    assert line.endswith(f"{command} has no option {old}: give {instead}")


def test_the_page_has_a_row_for_each_option_that_moved() -> None:
    table = PAGE.read_text("utf-8").partition("| command | was | is |\n")[2].partition("\n\n")[0]
    rows = [[re.findall(r"`([^`]+)`", cell) for cell in row.split(" | ")] for row in table.splitlines()[1:]]
    was = {(command, old.split()[0]) for commands, olds, _ in rows for command in commands for old in olds}
    moved = {"--initial", "--jobs", "-j", "--world-out", "--only-fit", "--token-out", "--print-policy"}
    assert {pair for pair in was if pair[1] in moved} == {
        (command, old) for command, options in OPTIONS.items() for old in options if old in moved
    }
    assert all(old in OPTIONS[command] for command, old in was)


def test_there_are_few_commands() -> None:
    assert len(GROUP.commands) <= 24
