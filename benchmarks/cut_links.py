"""Updates through a relay that cuts connections: how many arrive, how soon, and how many bytes it was given.

    python benchmarks/cut_links.py --out out.csv
    python benchmarks/cut_links.py --megabytes 100 --updates 1 --cuts 10 --random

One site trains with FedAsync behind the relay, which resets a connection after a number of megabytes in one
direction (with `--random` after a number of bytes between none and twice as many). Each update has its model
before it: these are the useful bytes. A run that has not ended after `--seconds` is stopped.
"""

import asyncio
import tempfile
import time
from contextlib import suppress

from harness import Row, Rows, main

import offbeat as ob
from offbeat.models.specs import MLPSpec
from offbeat.net import ServerOptions, join, serve, server_learner
from offbeat.runs.record import read_run
from tests.net.cutting_relay import relay


async def run(megabytes: float, updates: int, cut: float | None, seed: int | None, seconds: float) -> Row:
    """One run: the updates that arrived, the seconds, the bytes that the relay was given."""
    hidden = max(1, round(megabytes * 1e6 / 4 / 75))
    digits = ob.load("digits", samples=40, test_samples=20)
    learner = server_learner(MLPSpec(hidden=(hidden,)), ob.Training(lr=0.01, batch_size=20), digits.test)
    experiment = ob.Experiment(ob.fedasync(steps=1), learner, seed=3, until=ob.Until(versions=updates))
    most = None if cut is None else round(cut * 1e6)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            serve(experiment, folder, "127.0.0.1:0", options=ServerOptions(clients=1)) as server,
            relay(server.port, most, most, seed) as way,
        ):
            begun = time.perf_counter()
            address = f"127.0.0.1:{way.port}"
            site = asyncio.create_task(join(address, digits.train, name="north", give_up_after=seconds))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.shield(asyncio.ensure_future(server.ended()))
            took = time.perf_counter() - begun
            site.cancel()
            await asyncio.gather(site, return_exceptions=True)
        arrived = len(list(read_run(folder).entries("arrived")))
    useful = 2 * updates * 4 * (75 * hidden + 10)
    return {
        "arrived": arrived, "of": updates, "s": took, "connections": way.connections, "bytes": way.carried,
        "by the useful bytes": way.carried / useful,
    }  # fmt: skip


def cut_links(
    megabytes: float = 16.6, updates: int = 6, cuts: tuple[float, ...] = (60, 24, 12, 1),
    random: bool = False, seconds: float = 120.0,
) -> Rows:  # fmt: skip
    """Run without cuts and with each.

    megabytes: size of the model
    cuts: megabytes
    random: cut at random, as often on average
    """
    for cut in (None, *cuts):
        seed = 1 if random else None
        yield {"cut, MB": cut}, lambda c=cut, s=seed: asyncio.run(run(megabytes, updates, c, s, seconds))


if __name__ == "__main__":
    main(cut_links)
