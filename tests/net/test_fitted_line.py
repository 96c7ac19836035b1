"""A deployed run over a line of a set rate: the world that is fitted to its record has that rate."""

import asyncio
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.models.specs import MLPSpec
from offbeat.net import ServerOptions, join, serve, server_learner
from offbeat.net.monitor.from_journal import snapshot_of
from offbeat.recipes.from_run import fit_run
from offbeat.report.activity import read_activity
from offbeat.runs.record import read_run
from tests.net.cutting_relay import relay

# Bytes a second of the relay, each way.
RATE = 400_000.0


async def deployed(folder: Path, tasks: int, rate: float, cut: int | None = None) -> None:
    """A site trains a model of 0.6 MB; over the line it takes 1.5 s each way."""
    digits = ob.load("digits", samples=60, test_samples=20)
    learner = server_learner(MLPSpec(hidden=(2000,)), ob.Training(lr=0.01, batch_size=20), digits.test)
    experiment = ob.Experiment(ob.fedasync(steps=3), learner, until=ob.Until(tasks=tasks))
    async with (
        serve(experiment, folder, "127.0.0.1:0", options=ServerOptions(clients=1)) as server,
        relay(server.port, cut, cut, rate=rate) as way,
    ):
        site = asyncio.create_task(join(f"127.0.0.1:{way.port}", digits.train, name="north"))
        await server.ended()
        site.cancel()
        await asyncio.gather(site, return_exceptions=True)


def test_the_fitted_line_carries_what_the_line_did(tmp_path: Path) -> None:
    asyncio.run(deployed(tmp_path, 4, RATE))
    record = read_run(tmp_path)
    network = fit_run(record).world.network
    assert network.down == pytest.approx([8 * RATE], rel=0.15)
    assert network.up == pytest.approx([8 * RATE], rel=0.15)
    (site,) = snapshot_of(record).sites
    assert site.times is not None
    assert site.times.received + site.times.sent > 0.8
    assert read_activity(record).times[0].sent == pytest.approx(site.times.sent, rel=0.05)


def test_a_transfer_over_several_connections_counts_whole(tmp_path: Path) -> None:
    asyncio.run(deployed(tmp_path, 2, RATE, cut=400_000))
    for row in read_run(tmp_path).entries("arrived"):
        for way in ("line.received", "line.sent"):
            assert row[way] > 0.8 * 600_000 / RATE, row
