"""Lines of 1, 5 and 20 Mbit/s at each site: what they cost a served run, beside the simulator's run.

    python benchmarks/deployed_lines.py --out deployed_lines.csv

Four sites train a perceptron of 19,885 parameters, an eighth of that of lines.py, and their steps take an
eighth of the time: so a line takes the same share of a task's time. Each site has a relay, which carries the
line's bits each way. A row has the seconds until a number of updates has arrived: of a server and its sites,
in one process, and of a simulation whose world has the same steps and lines. Compression is that of lines.py.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import fmean

import numpy as np
import torch
from harness import Row, Rows, main
from lines import SPEEDS, STEPS

import offbeat as ob
from offbeat.codec import ErrorFeedback, Int8
from offbeat.data import Dataset
from offbeat.models.specs import MLPSpec, ModelMaker
from offbeat.net import ServerOptions, join, serve, server_learner
from offbeat.report.activity import read_activity
from offbeat.runs.record import read_run
from tests.net.cutting_relay import relay

SITES, SMALLER = 4, 8
PACES = [seconds / SMALLER for seconds in SPEEDS[:: len(SPEEDS) // SITES]]
MODEL = MLPSpec(hidden=(265,))
TRAINING = ob.Training(lr=0.1, batch_size=20)
ALGORITHMS = {
    "fedavg": partial(ob.fedavg, steps=STEPS),
    "fedbuff": partial(ob.fedbuff, size=SITES // 2, steps=STEPS),
    "fedcompass": partial(ob.fedcompass, q_min=STEPS, q_max=5 * STEPS),
}


async def served(
    experiment: ob.Experiment, parts: Sequence[Dataset], mbit: float, folder: str
) -> tuple[float, float]:
    """Serve a run; returns its seconds, and the share of the sites' time that their lines took."""
    async with AsyncExitStack() as stack:
        options = ServerOptions(clients=SITES)
        server = await stack.enter_async_context(serve(experiment, folder, "127.0.0.1:0", options=options))
        sites = []
        for n, (part, pace) in enumerate(zip(parts, PACES, strict=True)):
            way = await stack.enter_async_context(relay(server.port, rate=mbit * 1e6 / 8))
            joined = join(f"127.0.0.1:{way.port}", part, name=f"site-{n}", min_step_seconds=pace)
            sites.append(asyncio.create_task(joined))
        await server.ended()
        for site in sites:
            site.cancel()
        await asyncio.gather(*sites, return_exceptions=True)
    record = read_run(folder)
    times = read_activity(record).times.values()
    return record.from_begin().duration, fmean(own.received + own.sent for own in times)


def one(name: str, mbit: float, compressed: bool, tasks: int, parts: Sequence[Dataset], test: Dataset) -> Row:
    """Both runs, until the number of updates has arrived."""
    algorithm, wire = ALGORITHMS[name](), ob.Wire()
    if compressed:
        algorithm, wire = replace(algorithm, codec=ErrorFeedback(of=Int8())), ob.Wire(down="bfloat16")
    until = ob.Until(tasks=tasks)
    world = ob.World(PACES, network=ob.Network(up=mbit * 1e6, down=mbit * 1e6))
    learner = ob.TorchLearner(ModelMaker(MODEL, (64,), 10), ob.federate(parts, test), TRAINING)
    simulated = ob.simulate(algorithm, world, learner, until=until, evaluate=None, wire=wire)
    experiment = ob.Experiment(
        algorithm,
        server_learner(MODEL, TRAINING, test),
        until=until,
        evaluate=ob.Every(versions=None),
        wire=wire,
    )
    with tempfile.TemporaryDirectory() as folder:
        seconds, line = asyncio.run(served(experiment, parts, mbit, folder))
    return {
        "simulated s": round(simulated.summary.seconds, 2), "served s": round(seconds, 2),
        "ratio": round(seconds / simulated.summary.seconds, 2), "share of the lines": round(line, 2),
    }  # fmt: skip


def deployed_lines(tasks: int = 40, lines: tuple[float, ...] = (1.0, 5.0, 20.0)) -> Rows:
    """Run each algorithm on each line.

    tasks: updates after which a run ends
    lines: Mbit/s
    """
    torch.set_num_threads(1)
    source = ob.load("digits")
    shares = np.array_split(np.random.default_rng(0).permutation(len(source.train.y)), SITES)
    parts = [source.train.subset(share) for share in shares]
    for mbit, compressed, name in product(lines, (False, True), ALGORITHMS):
        key = {"algorithm": name, "mbit": mbit, "compressed": compressed}
        yield key, partial(one, name, mbit, compressed, tasks, parts, source.test)


if __name__ == "__main__":
    main(deployed_lines)
