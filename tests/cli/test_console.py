"""What is printed: a text of others stays text."""

import io

import pytest
import rich.table
from rich.progress import Progress

from offbeat.cli.console import PlainConsole, add_row, plain_table

HOSTILE = "\x1b]0;title\x07\x1b[31m\r\x9b2J\u202ea"
SHOWN = r"\u001b]0;title\u0007\u001b[31m\r\u009b2J\u202ea"


def console() -> PlainConsole:
    return PlainConsole(file=io.StringIO(), highlight=False, emoji=False, width=200)


def printed(console: PlainConsole) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("markup", [False, True])
def test_a_text_cannot_steer_the_terminal(markup: bool) -> None:
    to = console()
    to.print(f"offbeat: {HOSTILE}\nnext", markup=markup, soft_wrap=True)
    text = printed(to)
    assert not {"\x1b", "\x9b", "\x07", "\r", "\u202e"} & set(text)
    assert text.splitlines()[1] == "next"


def test_what_was_escaped_is_told() -> None:
    to = console()
    to.print(HOSTILE.replace("\x07", "").replace("\r", ""), markup=False, soft_wrap=True)
    assert printed(to) == SHOWN.replace(r"\u0007", "").replace(r"\r", "") + "\n"


def test_the_cells_of_a_table_and_a_progress_are_text_too() -> None:
    to, table = console(), plain_table("site")
    assert isinstance(table, rich.table.Table)
    add_row(table, HOSTILE)
    to.print(table)
    with Progress("{task.description}", console=to) as live:
        live.add_task(HOSTILE)
    assert "\x1b" not in printed(to)


def test_other_letters_and_spaces_stay() -> None:
    to = console()
    to.print("ε = 3 %, naïve\u202f日本語", markup=False)
    assert printed(to) == "ε = 3 %, naïve\u202f日本語\n"
