"""A server or a site of one federation, for a test that kills them while they send and receive.

    python tests/net/slow_peer.py server DIRECTORY
    python tests/net/slow_peer.py site DIRECTORY PORT

What has come of a body is written each twentieth of a second. The server writes its port to DIRECTORY/port.
"""

import asyncio
import sys
from pathlib import Path

import torch

import offbeat as ob
from offbeat.models.specs import MLPSpec
from offbeat.net import ServerOptions, join, serve, server_learner
from offbeat.net.wire import connection

HIDDEN, VERSIONS, SEED = 20_000, 3, 3
MODEL_BYTES = 4 * (75 * HIDDEN + 10)


async def server(directory: Path) -> None:
    """Serve the run to its end."""
    test = ob.load("digits", samples=40, test_samples=20).test
    learner = server_learner(MLPSpec(hidden=(HIDDEN,)), ob.Training(lr=0.1, batch_size=20), test)
    experiment = ob.Experiment(ob.fedasync(steps=2), learner, seed=SEED, until=ob.Until(versions=VERSIONS))
    options = ServerOptions(clients=1, lease=600.0)
    async with serve(experiment, directory / "run", "127.0.0.1:0", options=options) as run:
        port = directory / "port"
        port.with_suffix(".new").write_text(f"{run.port}")
        port.with_suffix(".new").rename(port)
        await run.ended()


async def site(directory: Path, port: str) -> None:
    """Take part in the run to its end."""
    train = ob.load("digits", samples=40, test_samples=20).train
    await join(f"127.0.0.1:{port}", train, name="north", state=directory / "site", give_up_after=300.0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    connection.SAVE_EVERY = 0.05
    role, place, *more = sys.argv[1:]
    asyncio.run(server(Path(place)) if role == "server" else site(Path(place), *more))
