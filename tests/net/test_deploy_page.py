"""The commands of docs/deploy.md, run as they stand there: real processes, a real network on loopback."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import offbeat as ob
from offbeat.net.client.site import Site
from offbeat.net.run_spec import read_run_spec
from tests.forks import OFFBEAT, shell_command
from tests.net.support import run_spec, torch_left_alone

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text("utf-8")


def blocks(heading: str, language: str) -> list[str]:
    """The listings of a section."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def free_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


@pytest.fixture
def shell(tmp_path: Path):
    """Starts a listing in a directory of its own, where `offbeat` is this source."""
    place = tmp_path / "bin"
    place.mkdir()
    command = place / "offbeat"
    command.write_text(f'#!/bin/sh\nexec {shell_command(OFFBEAT)} "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}

    started = []

    def start(text: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["bash", "-e", "-c", text], cwd=tmp_path, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:  # of a test that failed
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ended(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


@pytest.mark.thorough
def test_on_one_machine(shell, tmp_path: Path) -> None:
    (listing,) = blocks("On one machine", "sh")
    said = ended(shell(listing.replace("7117", free_port())))
    assert said.count("the run has ended: reached 12 versions") == 4
    assert re.search(r"identical: \d+ events gave the \d+ recorded commands", said)
    record = ob.read_run(tmp_path / "runs/live")
    assert record.status == "finished"
    assert (tmp_path / "runs/live/report.html").stat().st_size > 100_000
    assert record.evaluations()[-1].accuracy > record.evaluations()[0].accuracy + 0.1  # type: ignore[operator]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here")
def test_three_machines_with_tls(shell, tmp_path: Path) -> None:
    """Certificates, tokens, a server, two sites; then a token that is not good any more."""
    names = {
        "fl.example.org": "localhost", "0.0.0.0": "localhost", "/srv/offbeat": str(tmp_path),
        "7117": free_port(),
    }  # fmt: skip

    def here(text: str) -> str:
        for there, own in names.items():
            text = text.replace(there, own)
        return text

    certificates, tokens, serving, north, south = map(here, blocks("Three machines with TLS", "sh"))
    ended(shell(certificates))
    ended(shell(tokens))
    assert "north:" in (tmp_path / "north.token").read_text()
    assert "north:" not in (tmp_path / "heart" / "tokens.json").read_text()
    stranger = north.replace("north.token", "stranger.token").replace("north-state", "stranger-state")
    (tmp_path / "stranger.token").write_text("north:" + "x" * 43)
    server = shell(serving)
    refused = shell(stranger)  # while the run cannot have ended: it has no site yet
    said, _ = refused.communicate(timeout=300)
    assert refused.returncode == 1
    assert "the token is not valid" in said
    sites = [shell(north), shell(south)]
    assert [ended(site).count("the run has ended: reached 6 versions") for site in sites] == [1, 1]
    assert "reached 6 versions" in ended(server)
    assert ob.read_run(tmp_path / "heart").site_names() == {0: "north", 1: "south"} or ob.read_run(
        tmp_path / "heart"
    ).site_names() == {0: "south", 1: "north"}


def test_in_python(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for listing in blocks("In Python", "python"):
        exec(listing, names)
    with torch_left_alone():
        assert asyncio.run(names["federation"](tmp_path / "run")) == "reached 3 versions"
        assert names["federation_in_threads"](tmp_path / "again") == "reached 3 versions"
    samples = torch.randn(20, 5), torch.arange(20.0) % 2
    run = run_spec(ob.fedbuff(2, steps=5), names["test_learner"](samples), 0)
    site = Site.of(learner=names["site_learner"](samples, samples))
    assert site.make_learner(read_run_spec(run.document()), 1).samples(1) == 20


def test_the_recipe_of_ones_own_functions_is_that_of_the_example() -> None:
    (listing,) = blocks("Models, losses and metrics of one's own", "yaml")
    example = Path(__file__).parents[2] / "examples" / "hospitals" / "recipe.yaml"
    assert {"title": "Three hospitals, a model of their own", **yaml.safe_load(listing)} == yaml.safe_load(
        example.read_text("utf-8")
    )
