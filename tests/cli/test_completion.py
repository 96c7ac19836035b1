"""The shell completes commands and options."""

import pytest
from typer.testing import CliRunner

from offbeat.cli.commands import app


@pytest.mark.parametrize(("typed", "completed"), [("com", "compare"), ("compare --sw", "--sweep")])
def test_commands_and_options_are_completed(typed: str, completed: str) -> None:
    words = f"offbeat {typed}"
    env = {
        "_OFFBEAT_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    assert CliRunner().invoke(app, [], prog_name="offbeat", env=env).stdout.split() == [completed]
