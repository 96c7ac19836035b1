"""An interruption at any moment after the entry point is one line and exit code 130, in real processes."""

import json
import signal
from pathlib import Path

import pytest

from tests.forks import OFFBEAT, Fork
from tests.sampling import thorough

HIDING = """
import os, signal
try:
    os.kill(os.getpid(), signal.{})
    signal.pthread_sigmask(signal.SIG_BLOCK, [])  # a handler runs here at the latest
except BaseException:
    raise {}("nothing about the interruption")
"""
BACKGROUND = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from offbeat.cli import main
main()
"""


@pytest.mark.parametrize("hidden_in", ["RecursionError", *thorough("ImportError", "RuntimeError")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_import_does_not_hide_an_interruption(
    number: signal.Signals, hidden_in: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(HIDING.format(number.name, hidden_in), encoding="utf-8")
    words = ("127.0.0.1:1", "--name", "north", "--data", "own:sites")
    site = Fork(OFFBEAT, "join", *words, cwd=tmp_path)
    out, err = site.communicate(300)
    *events, last = err.splitlines()
    assert (site.returncode, out, last) == (
        130, "", "offbeat: interrupted; the same command takes part again"
    )  # fmt: skip
    # Before it stand only events, of one line of JSON each.
    assert [json.loads(line)["level"] for line in events] == ["info", "info"]


@pytest.mark.parametrize("command", ["join", *thorough("helper")])
def test_sigterm_ends_a_background_command(command: str, tmp_path: Path) -> None:
    """A script starts `offbeat join … &` with SIGINT ignored."""
    script, log = tmp_path / "background.py", tmp_path / "log"
    script.write_text(BACKGROUND, encoding="utf-8")
    given = {
        "join": ("--data", "digits", "--name", "north"), "helper": ("--name", "anna", "--state", tmp_path)
    }  # fmt: skip
    with log.open("w") as err:
        site = Fork(script, command, "127.0.0.1:1", *given[command], err=err)
    while "not connected" not in log.read_text(encoding="utf-8"):
        assert site.poll() is None
    site.send_signal(signal.SIGINT)
    site.send_signal(signal.SIGTERM)
    site.communicate(300)
    assert site.returncode == 130
    assert (
        log.read_text(encoding="utf-8").splitlines()[-1].startswith("offbeat: interrupted; the same command")
    )
