"""A server and a site that are killed while an update or a model is on its way: it goes on where it was."""

import asyncio
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any

import pytest

from offbeat.runs.record import read_run
from tests.forks import Fork
from tests.net import slow_peer
from tests.net.cutting_relay import Relay, relay
from tests.net.slow_peer import MODEL_BYTES, VERSIONS

SCRIPT = Path(slow_peer.__file__)
RATE = 4e6
"""Bytes a second in each direction: a model takes one and a half seconds."""


async def port_of(directory: Path, server: Fork) -> int:
    """The port of a server that has begun to listen."""
    while not (directory / "port").exists():
        assert server.poll() is None
        await asyncio.sleep(0.02)
    return int((directory / "port").read_text())


def losses(metrics: list[Any]) -> list[tuple[int, float]]:
    return [(row["version"], row["loss"]) for row in metrics]


def killed(process: Fork) -> int:
    """How a process ended, which ends here at the latest."""
    process.kill()
    process.communicate()
    return process.wait()


async def federation(directory: Path, kills: list[tuple[str, float]]) -> tuple[Relay, list[Any]]:
    """A run whose processes are killed: each kill has a process, and what passes before it, in models."""
    directory.mkdir()
    server = Fork(SCRIPT, "server", directory)
    async with relay(await port_of(directory, server), rate=RATE) as way:
        site = Fork(SCRIPT, "site", directory, way.port)
        try:
            for who, models in kills:
                enough = way.carried + models * MODEL_BYTES
                while way.carried < enough and server.poll() is None:
                    await asyncio.sleep(0.01)
                if server.poll() is not None:
                    break
                if who == "site":
                    assert killed(site) in (-SIGKILL, 0)
                    site = Fork(SCRIPT, "site", directory, way.port)
                else:
                    (directory / "port").unlink()
                    assert killed(server) in (-SIGKILL, 0)
                    server = Fork(SCRIPT, "server", directory)
                    way.upstream = await port_of(directory, server)
            while server.poll() is None:
                await asyncio.sleep(0.05)
            assert server.returncode == 0
        finally:
            killed(server)
            killed(site)
    return way, list(read_run(directory / "run").metrics)


@pytest.mark.parametrize("who", ["server", "site"])
def test_what_had_come_is_not_sent_again(who: str, tmp_path: Path) -> None:
    # Each kill comes in the middle of a model or an update.
    kills = [(who, 0.6)] * 3
    way, metrics = asyncio.run(federation(tmp_path / "killed", kills))
    # An evaluation that was under way is not made again.
    assert metrics[-1]["version"] == VERSIONS
    useful = 2 * VERSIONS * MODEL_BYTES
    assert (
        way.carried < 1.4 * useful + MODEL_BYTES
    )  # the model of a task that comes too late may be on its way
    assert not (tmp_path / "killed" / "run" / "transfers").exists()


@pytest.mark.thorough
def test_fifty_kills_change_nothing(tmp_path: Path) -> None:
    whole, expected = asyncio.run(federation(tmp_path / "whole", []))
    chance, done = Random(7), 0
    while done < 50:
        kills = [(chance.choice(("server", "site")), chance.uniform(0.1, 1.5)) for _ in range(10)]
        way, metrics = asyncio.run(federation(tmp_path / f"killed-{done}", kills))
        assert set(losses(metrics)) <= set(losses(expected))
        assert metrics[-1]["version"] == VERSIONS
        assert way.carried < 3 * whole.carried
        done += len(kills)
