"""Command lines of Offbeat that a file has: each is parsed as the program would parse it, and is not run."""

from pathlib import Path
from typing import Any

from typer.main import get_command

from offbeat.cli.commands import app

DEPLOY = Path(__file__).parents[2] / "deploy"
_GROUP: Any = get_command(app)


def parse(words: list[str]) -> dict[str, Any]:
    """The parameters of a command line, without the program's name; an unknown command or option raises."""
    command = _GROUP.get_command(None, words[0])
    assert command is not None, f"offbeat {words[0]}: there is no such command"
    return dict(command.make_context(words[0], words[1:]).params)
