"""Small versions of the storms that try to break a deployment: real processes, killed and lied to."""

import shutil
from pathlib import Path

import pytest

from tests.forks import Fork
from tests.sampling import thorough

STORM = Path(__file__).parents[1] / "storm"


def script(name: str, *words: str) -> str:
    """Run a storm to its end; returns what it printed."""
    process = Fork(STORM / name, *words)
    try:
        status = process.wait(570)
    finally:
        process.kill()  # it ends its children itself, if it can
        printed = "".join(process.communicate())
    assert status == 0, printed
    return printed


def number(printed: str, name: str) -> int:
    """The number that a line gives."""
    line = next(line for line in printed.splitlines() if line.startswith(name))
    return int(line.removeprefix(name).split()[0])


SECURE = ("--secure", "--helpers", "5", "--colluding", "2")


@pytest.mark.parametrize(
    ("kills", "more"),
    thorough((1, ()), (4, ()), (4, ("--noise",)), (4, ("--noise", "--bands", "3", "--secure")), (4, SECURE)),
)
def test_a_server_that_is_killed_loses_no_update_and_takes_none_twice(
    kills: int, more: tuple[str, ...], tmp_path: Path
) -> None:
    """No release has two noises that anybody saw. With masked updates the helpers are killed as well."""
    words = ("--sites", "4", "--full", "0.5", "--lease", "20", "--directory", str(tmp_path / "run"))
    printed = script("faults.py", "--kills", str(kills), *words, *more)
    assert number(printed, "server killed") == kills
    assert number(printed, "acknowledged  ") > 0
    assert number(printed, "acknowledged and lost") == 0
    assert "model made again from the journal    the same bytes" in printed


@pytest.mark.thorough
def test_sites_leave_a_server_that_was_restored_and_helpers_refuse_its_releases(tmp_path: Path) -> None:
    """Those who have forgotten it go on with it: with fresh noise, and no task in two sets."""
    words = ("--sites", "4", "--full", "0", "--lease", "20", "--directory", str(tmp_path / "run"))
    printed = script("faults.py", "--kills", "2", "--noise", "--secure", "--restore", *words)
    assert "sites that left since it went back   4 of 4" in printed
    assert number(printed, "refused by helpers") > 0
    assert number(printed, "releases after it was put back") >= 8


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_bad_peers_change_nothing(tmp_path: Path) -> None:
    words = ("--messages", "300", "--times", "1", "--rounds", "1")
    printed = script("bad_peers.py", *words, "--directory", str(tmp_path / "peers"))
    assert "with and without the attack: the same bytes" in printed
    assert number(printed, "messages:") == 300


@pytest.mark.parametrize(
    ("grpc", "page", "open_files"), thorough((300, 400, 400), (2500, 4000, 400), (2500, 4000, 1024))
)
def test_a_run_outlives_floods_of_connections(grpc: int, page: int, open_files: int, tmp_path: Path) -> None:
    """Checkpoints are written meanwhile; the log stays short, and the files are their owner's alone."""
    counts = ("--grpc", str(grpc), "--page", str(page), "--open-files", str(open_files))
    pace = ("--seconds", "3" if grpc > 300 else "1.2", "--step-seconds", "0.03")
    printed = script("flood.py", *counts, *pace, "--directory", str(tmp_path))
    assert "the run has ended well" in printed
    lines = {line.split("  ")[0]: line for line in printed.splitlines()}
    for part in ("before", f"{grpc} to the sites' port", "between", f"{page} to the page", "after"):
        assert float(lines[part].split(" updates/s")[0].split()[-1]) > 0, printed
        assert "answers in" in lines[part], printed
    assert "'address'" in lines["between"]
    assert "'page address'" in lines["after"]
    assert number(printed, "log of the server:") < 5000
    assert "Traceback" not in (tmp_path / "server.log").read_text(encoding="utf-8")
    assert number(printed, "most descriptors") <= open_files - 150
    state = tmp_path / "state"
    assert [str(path) for path in (state, *state.rglob("*")) if path.stat().st_mode & 0o077] == []
