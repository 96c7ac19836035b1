"""How SIGINT and SIGTERM end a coroutine, in processes of their own."""

import signal
from pathlib import Path

import pytest

from tests.forks import Fork

SCRIPT = """
import asyncio, signal, sys
if "ignored" in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
from offbeat.cli.event_loop import run_until_interrupted

async def work():
    try:
        print("at work", flush=True)
        await asyncio.sleep(3600)
    finally:
        print("left", flush=True)
        if "stuck" in sys.argv:
            signal.pause()

try:
    run_until_interrupted(work())
except KeyboardInterrupt:
    print("interrupted")
"""


def begin(folder: Path, *words: str) -> tuple[Fork, Path]:
    """A process that works in an event loop, and the file with what it prints."""
    script, said = folder / "script.py", folder / "said"
    script.write_text(SCRIPT, encoding="utf-8")
    with said.open("w") as out:
        process = Fork(script, *words, out=out)
    wait_for(process, said, "at work\n")
    return process, said


def wait_for(process: Fork, file: Path, text: str) -> None:
    while text not in file.read_text(encoding="utf-8"):
        assert process.poll() is None


@pytest.mark.parametrize("words", [(), ("ignored",)], ids=["", "SIGINT ignored"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels(words: tuple[str, ...], number: signal.Signals, tmp_path: Path) -> None:
    """A script starts its background commands with SIGINT ignored, which means nothing for SIGTERM."""
    process, said = begin(tmp_path, *words)
    process.send_signal(number)
    if words and number == signal.SIGINT:
        process.send_signal(signal.SIGTERM)
    assert process.communicate(300) == ("", "")
    assert process.returncode == 0
    assert said.read_text(encoding="utf-8") == "at work\nleft\ninterrupted\n"


def test_a_second_signal_interrupts_what_does_not_leave(tmp_path: Path) -> None:
    process, said = begin(tmp_path, "stuck")
    process.send_signal(signal.SIGTERM)
    wait_for(process, said, "left\n")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(300) == ("", "")
    assert process.returncode == 0
    assert said.read_text(encoding="utf-8").endswith("interrupted\n")
