"""The example of three hospitals: processes, TLS, a module of their own; the server is killed and goes on."""

import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import offbeat as ob
from tests.forks import OFFBEAT, Fork
from tests.net.authority import Authority

ROOT = Path(__file__).parents[2]
HOSPITALS = ("north", "east", "south")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts `offbeat …` with a table, as a process with its output in a file."""
    running: list[Fork] = []

    def begin(name: str, table: str, *arguments: object) -> Fork:
        with (tmp_path / f"{name}.log").open("wb") as log:
            running.append(
                Fork(OFFBEAT, *arguments, out=log, err=log, cwd=tmp_path, CLINIC_TABLE=f"tables/{table}.csv")
            )
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()


def wait_for(ready: Any, *logs: Path) -> Any:
    """What is ready at last."""
    deadline = time.monotonic() + 300
    while not (found := ready()):
        assert time.monotonic() < deadline, [log.read_text("utf-8") for log in logs]
        time.sleep(0.05)
    return found


@pytest.mark.thorough
def test_three_hospitals(start: Any, tmp_path: Path) -> None:
    for name in ("clinic.py", "recipe.yaml"):
        shutil.copy(ROOT / "examples" / "hospitals" / name, tmp_path)
    tables = Fork(tmp_path / "clinic.py", "tables", cwd=tmp_path)
    assert (tables.communicate(300), tables.returncode) == (("", ""), 0)
    authority = Authority(tmp_path, "federation")
    certificate, key = authority.issue("server", host="127.0.0.1")
    log, state = tmp_path / "server.log", tmp_path / "state"

    def serve(port: int) -> Fork:
        server: Fork = start(
            "server", "test", "serve", "recipe.yaml", "--test", "clinic:test", "--state", state,
            "--allow", "clinic", "--listen", f"127.0.0.1:{port}", "--cert", certificate, "--key", key,
            "--client-ca", authority.file,
        )  # fmt: skip
        return server

    def shown(own: Path, own_key: Path) -> list[str]:
        keys = {"ca": authority.file, "certificate": own, "key": own_key}
        return [word for key, file in keys.items() for word in ("--set", f"access.{key}={file}")]

    def join(name: str, *options: str) -> Fork:
        own, own_key = authority.issue(name)
        site: Fork = start(
            name, name, "join", f"127.0.0.1:{port}", *shown(own, own_key),
            "--data", "clinic:data", "--set", "site.min_step_seconds=0.01", *options,
        )  # fmt: skip
        return site

    server = serve(0)
    port = int(
        wait_for(lambda: re.search(r"listening on 127\.0\.0\.1:(\d+)", log.read_text("utf-8")), log)[1]
    )
    another = authority.issue("stranger")
    stranger = start(
        "stranger", "north", "join", f"127.0.0.1:{port}", *shown(*another), "--data", "clinic:data",
    )  # fmt: skip
    assert stranger.wait(300) == 2
    (line,) = (tmp_path / "stranger.log").read_text("utf-8").strip().splitlines()[-1:]
    assert line == (
        "offbeat: the run's model clinic:make_model is not allowed: a name in a file or from a server "
        "imports nothing by itself; if you trust it, give "
        "--allow clinic:make_model, or --allow clinic for all that "
        "clinic exposes (in Python allow=['clinic:make_model'])"
    )
    sites = [join(name, "--allow", "clinic") for name in HOSPITALS[:2]]
    sites.append(join("south", "--allow", "clinic", "--model", "clinic:make_model"))

    def versions() -> int:
        return sum(row.name == "aggregate" for row in ob.read_run(state).rows())

    wait_for(lambda: versions() >= 5, log)
    server.send_signal(signal.SIGKILL)
    server.wait()
    server = serve(port)
    assert [process.wait(300) for process in (server, *sites)] == [0, 0, 0, 0], log.read_text("utf-8")
    record = ob.read_run(state)
    assert (record.status, record.stop_reason) == ("finished", "reached 40 versions")
    last = record.metrics[-1]
    assert last["auroc"] > 0.85
    assert 0.5 < last["sensitivity"] <= 1
    replayed = start("replay", "test", "replay", state)
    assert replayed.wait(300) == 0
    assert "identical" in (tmp_path / "replay.log").read_text("utf-8")
