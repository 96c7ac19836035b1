"""The shell completes commands and options."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import offbeat as ob
from offbeat.cli.commands import app


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("com", ["compare"]),
        ("compare --sw", ["--sweep"]),
        ("run dig", ["digits"]),
        ("recipes dig", ["digits"]),
        ("algorithms fedbu", ["fedbuff"]),
        ("compare stragglers -a fedbu", ["fedbuff"]),
        ("compare own.yaml --baseline sl", ["slow"]),
        ("compare none.yaml -a fedbu", ["fedbuff"]),
        ("join a:1 --data digi", ["digits"]),
        ("report own --baseline sl", ["slow"]),
        ("report none --baseline sl", []),
        ("simulate-like run --algorithm fedprox", ["fedprox"]),
    ],
)
def test_commands_options_and_names_are_completed(
    typed: str, completed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("algorithms: {slow: {name: fedasync}}", encoding="utf-8")
    if "report" in typed:
        learner = ob.NoTraining(2, 2)
        ob.simulate(
            ob.fedasync(steps=1), ob.World(1.0), learner, until=ob.Until(tasks=2), out="own", label="slow"
        )
    words = f"offbeat {typed}"
    env = {
        "_OFFBEAT_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    assert CliRunner().invoke(app, [], prog_name="offbeat", env=env).stdout.split() == completed
