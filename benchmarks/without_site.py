"""How far a replay without a site is from a training without it; the table of docs/site.md.

Three sites train digits by FedAvg on a network in memory. North has most of the digits 0 to 2.
"""

import asyncio
import tempfile
from pathlib import Path

import numpy as np
from harness import Rows, main

import offbeat as ob
from offbeat.core.model import Model
from offbeat.models import LogisticSpec
from offbeat.net import ServerOptions, join, serve, server_learner
from offbeat.net.server.without_site import contribution, replay_without
from offbeat.runs.files import read_model
from offbeat.testing.network import MemoryNetwork

ROUNDS, OWN_DIGITS, LEFT_TO_OTHERS = 30, 3, 20
SOURCE = ob.load("digits")
assert SOURCE.test is not None
TEST, DIGITS, TESTED_DIGITS = SOURCE.test, np.asarray(SOURCE.train.y), np.asarray(SOURCE.test.y)


def shares() -> dict[str, list[int]]:
    """The samples of each site."""
    own = np.flatnonzero(DIGITS < OWN_DIGITS).tolist()
    rest = np.flatnonzero(DIGITS >= OWN_DIGITS).tolist()
    few, own = own[:LEFT_TO_OTHERS], own[LEFT_TO_OTHERS:]
    return {"north": own, "east": rest[::2] + few[::2], "south": rest[1::2] + few[1::2]}


def experiment() -> ob.Experiment:
    """The run, whoever takes part."""
    learner = server_learner(LogisticSpec(), ob.Training(lr=0.1, batch_size=32), test=TEST)
    return ob.Experiment(ob.fedavg(steps=10), learner, until=ob.Until(versions=ROUNDS))


async def federation(state: Path, names: list[str]) -> None:
    """Serve the run to these sites until its end."""
    network, own = MemoryNetwork(), shares()
    options = ServerOptions(clients=len(names), keep_updates=True)
    async with serve(experiment(), state, network.listen, options=options) as server:
        sites = (join(network.connect(name), SOURCE.train.subset(own[name])) for name in names)
        await asyncio.gather(*sites)
        await server.ended()


def without_site() -> Rows:
    own = TEST.subset(np.flatnonzero(TESTED_DIGITS < OWN_DIGITS))
    tested = [server_learner(LogisticSpec(), test=data) for data in (TEST, own)]
    with tempfile.TemporaryDirectory() as folder:
        everybody, others = Path(folder, "everybody"), Path(folder, "others")
        asyncio.run(federation(everybody, ["north", "east", "south"]))
        asyncio.run(federation(others, ["east", "south"]))
        record = ob.read_run(everybody)
        north = contribution(record, "north").client
        replayed = replay_without(record, experiment().prepare(3, tested=True), north).model
        with_it, exact = (
            read_model(run / "model.safetensors", replayed.layout) for run in (everybody, others)
        )
    models: dict[str, Model] = {
        "with north": with_it, "replayed without north": replayed, "trained without north": exact,
    }  # fmt: skip
    for name, model in models.items():
        yield {
            "model": name,
            "accuracy": f"{tested[0].evaluate(model)['accuracy']:.2f}",
            "accuracy on the digits 0 to 2": f"{tested[1].evaluate(model)['accuracy']:.2f}",
            "distance of its weights from the third": f"{float((model.values - exact.values).norm()):.1f}",
        }


if __name__ == "__main__":
    main(without_site)
