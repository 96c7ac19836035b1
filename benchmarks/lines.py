"""A line of 1, 5 or 20 Mbit/s at each site: what it costs three algorithms, with and without compression.

    python benchmarks/lines.py --out lines.csv

Eight sites train a perceptron of 159,010 parameters on Fashion-MNIST, in virtual time. Twenty of their steps
take between 1 and 5 s; their lines carry the same both ways, with 50 ms of latency. A row has the virtual
seconds until the accuracy is reached, and the share of a task's time that the line takes. Compression is
bfloat16 down, and int8 with error feedback up.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import median

import numpy as np
import torch
from harness import Row, Rows, main, markdown

import offbeat as ob
from offbeat.codec import ErrorFeedback, Int8
from offbeat.core.codec import update_bits
from offbeat.core.layout import Layout
from offbeat.models.specs import MLPSpec, ModelMaker

SITES, STEPS, LATENCY = 8, 20, 0.05
SPEEDS = [float(seconds) for seconds in np.geomspace(0.05, 0.25, SITES)]
ALGORITHMS: dict[str, Callable[[], ob.Algorithm]] = {
    "fedavg": lambda: ob.fedavg(steps=STEPS),
    "fedbuff": lambda: ob.fedbuff(size=SITES // 2, steps=STEPS),
    "fedcompass": lambda: ob.fedcompass(q_min=STEPS, q_max=5 * STEPS),
}


def one(name: str, mbit: float, compressed: bool, seed: int, data: ob.FederatedData, until: ob.Until) -> Row:
    """One run, until the accuracy is reached."""
    algorithm, wire = ALGORITHMS[name](), ob.Wire()
    if compressed:
        algorithm, wire = replace(algorithm, codec=ErrorFeedback(of=Int8())), ob.Wire(down="bfloat16")
    maker = ModelMaker(MLPSpec(hidden=(200,)), (1, 28, 28), 10)
    layout = Layout.of(maker())
    world = ob.World(SPEEDS, network=ob.Network(latency=LATENCY, up=mbit * 1e6, down=mbit * 1e6))
    learner = ob.TorchLearner(maker, data, ob.Training(lr=0.1, batch_size=32))
    run = ob.simulate(algorithm, world, learner, seed=seed, until=until, evaluate=ob.Every(seconds=5))
    carried = (8 * wire.model_bytes(layout) + update_bits(algorithm.codec, layout)) / (mbit * 1e6)
    line, training = 2 * LATENCY + carried, STEPS * float(np.mean(SPEEDS))
    reached = "reached" in (run.stop_reason or "") and "accuracy" in (run.stop_reason or "")
    return {
        "seconds": round(run.summary.seconds, 1) if reached else "never",
        "accuracy": round(float(run.metrics[-1]["accuracy"]), 4),
        "megabytes": round((run.summary.bytes_up + run.summary.bytes_down) / 1e6, 1),
        "line": round(line / (line + training), 3),
    }  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Median seconds over the seeds, and megabytes, as Markdown."""
    lines = [["line", "compressed", "share of the line", *ALGORITHMS]]
    for mbit, compressed in sorted({(float(row["mbit"]), row["compressed"]) for row in rows}):
        of = [row for row in rows if (float(row["mbit"]), row["compressed"]) == (mbit, compressed)]
        cells = []
        for name in ALGORITHMS:
            own = [row for row in of if row["algorithm"] == name]
            seconds = [float("inf") if row["seconds"] == "never" else float(row["seconds"]) for row in own]
            size = median(float(row["megabytes"]) for row in own) if own else float("nan")
            cells.append(f"{median(seconds):,.0f} s, {size:,.0f} MB" if own else "–")
        share = f"{100 * float(of[0]['line']):.0f} %"
        lines.append([f"{mbit:g} Mbit/s", "yes" if compressed == "True" else "no", share, *cells])
    return markdown(lines)


def slow_lines(
    seeds: int = 3, accuracy: float = 0.84, tasks: int = 2000, lines: tuple[float, ...] = (1.0, 5.0, 20.0),
    samples: int | None = None,
) -> Rows:  # fmt: skip
    """Run each algorithm on each line.

    accuracy: at which a run ends
    tasks: updates after which it ends without it
    lines: Mbit/s
    samples: training samples; all by default
    """
    torch.set_num_threads(1)
    source = ob.load("fashion_mnist", samples=samples)
    parts = np.array_split(np.random.default_rng(0).permutation(len(source.train.y)), SITES)
    data = ob.federate([source.train.subset(part) for part in parts], source.test)
    until = ob.Until(tasks=tasks, accuracy=accuracy)
    for seed, mbit, compressed, name in product(range(seeds), lines, (False, True), ALGORITHMS):
        key = {"algorithm": name, "mbit": mbit, "compressed": compressed, "seed": seed}
        yield key, partial(one, name, mbit, compressed, seed, data, until)


if __name__ == "__main__":
    main(slow_lines, table)
