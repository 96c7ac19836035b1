"""`offbeat check`: a line for each check, JSON, and the exit code."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offbeat.cli import app
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
    names = ["address", "TLS", "HTTP/2", "access", "version", "clock", "disk", "data", "policy"]
    assert lines == [["PASS", name] for name in names]


@pytest.mark.parametrize("option", [["--data", "nothing:here"], ["--policy", "missing.yaml"]])
def test_a_check_that_fails(option: list[str]):
    code, output = serving(["--name", "north", "--json", *option])
    assert code == 1
    last = json.loads(output)[-1]
    assert (last["name"], last["passed"]) == (option[0].removeprefix("--"), False)
    assert option[1].partition(":")[0] in last["text"]
