"""Updates through a relay that cuts connections: how many arrive, how soon, and how many bytes it was given.

    python benchmarks/cut_links.py --json out.json
    python benchmarks/cut_links.py --megabytes 100 --updates 1 --cuts 10 --random

One site trains with FedAsync behind the relay, which resets a connection after a number of megabytes in one
direction (with `--random` after a number of bytes between none and twice as many). Each update has its model
before it: these are the useful bytes. A run that has not ended after `--seconds` is stopped.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import offbeat as ob
from offbeat.models.specs import MLPSpec
from offbeat.net import ServerOptions, join, serve, server_learner
from offbeat.runs.record import read_run

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.net.cutting_relay import relay


async def run(
    megabytes: float, updates: int, cut: float | None, seed: int | None, seconds: float
) -> dict[str, Any]:
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
    row: dict[str, Any] = {"cut": cut, "arrived": arrived, "seconds": took, "connections": way.connections}
    return {**row, "bytes": way.carried, "useful": 2 * updates * 4 * (75 * hidden + 10)}


def main() -> None:
    """Run without cuts and with each, and print the table."""
    parser = argparse.ArgumentParser(description="Updates through a relay that cuts connections.")
    parser.add_argument("--megabytes", type=float, default=16.6, help="size of the model")
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--cuts", type=float, nargs="+", default=[60, 24, 12, 1], help="megabytes")
    parser.add_argument("--random", action="store_true", help="cut at random, as often on average")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for cut in (None, *given.cuts):
        seed = 1 if given.random else None
        rows.append(asyncio.run(run(given.megabytes, given.updates, cut, seed, given.seconds)))
        row = rows[-1]
        shown = "no cuts" if cut is None else f"{cut:g} MB"
        print(
            f"{shown:>8}: {row['arrived']} of {given.updates} updates in {row['seconds']:.1f} s, "
            f"{row['connections']} connections, {row['bytes'] / row['useful']:.2f} of the useful bytes",
            flush=True,
        )
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
