"""Links that are cut: messages come in pieces. Where nothing comes, a site tries less often, and ends."""

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

import offbeat as ob
from offbeat.core.errors import RunError
from offbeat.models.specs import MLPSpec
from offbeat.net import ServerOptions, join, serve, server_learner
from offbeat.runs.record import read_run
from tests.net.cutting_relay import Relay, relay
from tests.net.support import Shares, shares_of_digits, torch_left_alone

MODEL_BYTES = 4 * (64 * 8000 + 8000 + 8000 * 10 + 10)


@pytest.fixture(scope="module")
def digits() -> Shares:
    return shares_of_digits(1, samples=40, test_samples=20)


@pytest.mark.parametrize(
    ("up", "down", "what"),
    [
        (50_000, None, r"the update of task \d+"),
        (None, 50_000, r"the model of task \d+ \(version 0\)"),
    ],
)
def test_a_message_that_never_passes_costs_few_connections_and_ends_the_site(
    up: int | None,
    down: int | None,
    what: str,
    digits: Shares,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (share,), test = digits
    learner = server_learner(MLPSpec(hidden=(8000,)), ob.Training(lr=0.1, batch_size=20), test)
    experiment = ob.Experiment(ob.fedasync(steps=2), learner, seed=3, until=ob.Until(versions=2))
    caplog.set_level(logging.INFO)

    async def story() -> Relay:
        options = ServerOptions(clients=1)
        async with serve(experiment, tmp_path, "127.0.0.1:0", options=options) as server:
            async with relay(server.port, up, down) as way:
                with pytest.raises(RunError, match=f"{what} has not got through for 3 s: "):
                    await join(f"127.0.0.1:{way.port}", share, name="north", give_up_after=3.0)
            # The site has given its task back, so the run goes on with another connection.
            await join(f"127.0.0.1:{server.port}", share, name="north")
            assert await server.ended() == "reached 2 versions"
            return way

    with torch_left_alone():
        way = asyncio.run(story())
    assert way.connections <= 10
    assert way.carried < 10 * 2 * MODEL_BYTES
    said = [record.getMessage() for record in caplog.records]
    tries = [line for line in said if re.match(f"{what} did not get through", line)]
    assert "attempt 1, " in tries[0]
    # The system takes bytes that it cannot send: the site knows that they went, and not that they came.
    assert "2.4 MB" in tries[0]
    assert "attempt 2, " in tries[1]


@pytest.mark.parametrize(
    ("up", "down", "most"), [(1_000_000, None, 1.5), (None, 1_000_000, 1.5), (400_000, 700_000, 3.0)]
)
def test_a_message_passes_in_pieces(
    up: int | None,
    down: int | None,
    most: float,
    digits: Shares,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (share,), test = digits
    learner = server_learner(MLPSpec(hidden=(8000,)), ob.Training(lr=0.1, batch_size=20), test)
    experiment = ob.Experiment(ob.fedasync(steps=2), learner, seed=3, until=ob.Until(versions=2))
    caplog.set_level(logging.INFO)

    async def story(directory: Path, *, cut: bool) -> tuple[Relay, list[dict[str, Any]]]:
        options = ServerOptions(clients=1)
        async with (
            serve(experiment, directory, "127.0.0.1:0", options=options) as server,
            relay(server.port, up if cut else None, down if cut else None) as way,
        ):
            await join(f"127.0.0.1:{way.port}", share, name="north", give_up_after=60.0)
            assert await server.ended() == "reached 2 versions"
        return way, list(read_run(directory).metrics)

    with torch_left_alone():
        way, metrics = asyncio.run(story(tmp_path / "cut", cut=True))
        whole, expected = asyncio.run(story(tmp_path / "whole", cut=False))
    assert way.connections > 3
    # Two models and two updates.
    assert whole.carried > 4 * MODEL_BYTES
    # A reset costs what the receiver has not read: a chunk, and a window of HTTP/2.
    assert way.carried < most * whole.carried
    assert [(row["version"], row["loss"]) for row in metrics] == [
        (row["version"], row["loss"]) for row in expected
    ]
    assert not (tmp_path / "cut" / "transfers").exists()
    assert any("comes in pieces" in record.getMessage() for record in caplog.records)
