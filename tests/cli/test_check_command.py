"""`offbeat check`: a line for each check, JSON, and the exit code."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offbeat.cli.commands import app
from offbeat.net.threads import in_thread
from tests.net.support import server


def serving(arguments: list[str]) -> tuple[int, str]:
    """Exit code and output of `offbeat check` beside a server."""

    async def story() -> tuple[int, str]:
        async with server() as at:
            done = await asyncio.to_thread(CliRunner().invoke, app, ["check", at.address, *arguments])
            assert at.heard.links == []
            return done.exit_code, done.output

    return in_thread(story()).result()


def test_a_line_for_each_check(tmp_path: Path):
    (tmp_path / "policy.yaml").write_text("min_batch_size: 8\n")
    given = ["--name", "north", "--state", str(tmp_path), "--policy", str(tmp_path / "policy.yaml")]
    code, output = serving([*given, "--data", "digits:1/3"])
    assert code == 0, output
    lines = [line.split()[:2] for line in output.splitlines()]
    names = ["address", "TLS", "HTTP/2", "access", "version", "clock", "throughput", "disk", "data", "policy"]
    assert lines == [["PASS", name] for name in names]


@pytest.mark.parametrize("option", [["--data", "nothing:here"], ["--policy", "missing.yaml"]])
def test_a_check_that_fails(option: list[str]):
    code, output = serving(["--name", "north", "--json", *option])
    assert code == 1
    last = json.loads(output)[-1]
    assert (last["name"], last["passed"]) == (option[0].removeprefix("--"), False)
    assert option[1].partition(":")[0] in last["text"]


def test_a_server_is_checked_and_opens_nothing(tmp_path: Path):
    given = ["serve", "digits", "--state", str(tmp_path / "run"), "--listen", "127.0.0.1:0", "--check"]
    done = CliRunner().invoke(app, [*given, "--sites", "2"])
    assert done.exit_code == 0, done.output
    lines = [line.split()[:2] for line in done.output.splitlines()]
    names = ["address", "access", "sites", "disk", "writing", "clock", "data", "state"]
    assert lines == [["PASS", name] for name in names]
    assert not (tmp_path / "run").exists()
    done = CliRunner().invoke(app, [*given, "--json", "--test", "nothing:here"])
    assert done.exit_code == 1
    failed = [each for each in json.loads(done.output) if not each["passed"]]
    assert [(each["name"], "nothing" in each["text"]) for each in failed] == [("data", True)]


def test_another_run_in_the_state_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    small = ["--set", "until={versions: 1}", "--set", "data.samples=100", "--out", "run"]
    assert CliRunner().invoke(app, ["run", "digits", *small]).exit_code == 0
    done = CliRunner().invoke(
        app, ["serve", "digits", "--state", "run", "--listen", "127.0.0.1:0", "--check"]
    )
    assert done.exit_code == 1
    assert "FAIL  state" in done.output
    assert "holds a simulated run: choose another state directory" in done.output
