"""What training many clients together saves: the executor `Batched` beside a loop written by hand.

    python benchmarks/batched.py [--repeats 5] [--rounds 20] [--models logistic,mlp,cnn,compass]
        [--tables AB] [--json FILE]

A: 100 clients with 600 images of Fashion-MNIST each, 10 in a round of FedAvg, 20 steps with batches of 32.
   The loop is plain PyTorch: for each client it loads the model, does the same SGD steps on batches it has
   ready, and adds the result to the mean. It has no clock and no journal. Nobody evaluates anything.
B: the same with 64 clients in a round, trained together 1, 2, 4 … 64 at a time.

All on one thread, what is compared by turns; medians with their range.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import offbeat as ob
from offbeat.core.streams import Purpose, stream
from offbeat.local.batches import batches
from offbeat.models import CompassCNNSpec, LogisticSpec, MLPSpec, ModelSpec, WirelessCNNSpec, build

CLIENTS, STEPS, BATCH, LR = 100, 20, 32, 0.05
MODELS: dict[str, ModelSpec] = {
    "logistic": LogisticSpec(),
    "mlp": MLPSpec(hidden=(200,)),
    "cnn": WirelessCNNSpec(),
    "compass": CompassCNNSpec(),
}


def by_hand(learner: ob.TorchLearner, rounds: int, per_round: int) -> Callable[[], None]:
    """The loop, with its batches drawn beforehand."""
    x, y = learner.data.train.x, learner.data.train.y
    module = learner.prepare().bench.module
    chance = np.random.default_rng(0)
    plan = []
    for task in range(rounds * per_round):
        client = int(chance.integers(CLIENTS))
        own = learner.data.client_indices(client)
        drawn = batches(stream(0, Purpose.TRAIN, client, task), len(own), BATCH, STEPS)
        plan.append([own[batch] for batch in drawn])

    def run() -> None:
        parameters = list(module.parameters())
        model = [torch.zeros_like(p) for p in parameters]
        for start in range(0, len(plan), per_round):
            mean = [torch.zeros_like(p) for p in parameters]
            for steps in plan[start : start + per_round]:
                with torch.no_grad():
                    for parameter, value in zip(parameters, model, strict=True):
                        parameter.copy_(value)
                optimizer = torch.optim.SGD(parameters, LR)
                for batch in steps:
                    optimizer.zero_grad()
                    functional.cross_entropy(module(x[batch]), y[batch]).backward()
                    optimizer.step()
                with torch.no_grad():
                    for total, parameter in zip(mean, parameters, strict=True):
                        total.add_(parameter, alpha=1 / per_round)
            model = mean

    return run


def simulated(
    learner: ob.TorchLearner, rounds: int, per_round: int, executor: ob.Batched | None
) -> Callable[[], None]:
    """The same work as a simulation."""

    def run() -> None:
        ob.simulate(
            ob.fedavg(steps=STEPS, clients_per_round=per_round), ob.World(1.0), learner,
            until=ob.Until(versions=rounds), evaluate=None, executor=executor,
        )  # fmt: skip

    return run


Seconds = tuple[float, float]


def by_turns(contestants: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[Seconds]]:
    """Wall and CPU seconds of each, so many times in turn, after one time that does not count."""
    seconds: dict[str, list[Seconds]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        for name, run in contestants.items():
            began = time.perf_counter(), time.process_time()
            run()
            if turn:
                seconds[name].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    return seconds


def rows(model: str, seconds: dict[str, list[Seconds]], steps: int, base: str) -> list[dict[str, Any]]:
    """Wall microseconds a step, and the ratios of wall and of CPU time to `base`, turn by turn."""
    found = []
    for name, times in seconds.items():
        ratios = [[t[i] / b[i] for t, b in zip(times, seconds[base], strict=True)] for i in (0, 1)]
        micro = [1e6 * t[0] / steps for t in times]
        values = {"us_per_step": spread(micro), "ratio": spread(ratios[0]), "cpu_ratio": spread(ratios[1])}
        found.append({"model": model, "training": name, **values})
    return found


def spread(numbers: list[float]) -> tuple[float, float, float]:
    """Median, least and most."""
    return statistics.median(numbers), min(numbers), max(numbers)


def show(found: list[dict[str, Any]]) -> None:
    """Print rows."""
    for row in found:
        micro = "{:7.0f} us/step ({:.0f} to {:.0f})".format(*row["us_per_step"])
        wall, cpu = ("{:5.2f} ({:.2f} to {:.2f})".format(*row[key]) for key in ("ratio", "cpu_ratio"))
        print(f"  {row['model']:9} {row['training']:11} {micro:32} wall {wall:22} CPU {cpu}", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--models", default="logistic,mlp,cnn,compass")
    parser.add_argument("--data", default="fashion_mnist")
    parser.add_argument("--tables", default="AB", help="A, B or AB")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    source = ob.load(options.data, seed=0)
    shape, classes = source.train.sample_shape, source.train.classes
    data = ob.federate(source, None, np.array_split(np.arange(len(source.train)), CLIENTS))
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"load of the machine: {', '.join(f'{x:.1f}' for x in os.getloadavg())} on {os.cpu_count()} CPUs\n")
    kept: dict[str, list[dict[str, Any]]] = {"A": [], "B": []}
    for table, per_round in (("A", 10), ("B", 64)):
        if table not in options.tables:
            continue
        rounds = max(1, options.rounds * 10 // per_round)
        print(f"{table}: {per_round} clients in a round, {rounds} rounds; ratios to the first row")
        for name in options.models.split(","):
            spec = MODELS[name]
            learner = ob.TorchLearner(
                lambda spec=spec: build(spec, shape, classes), data, ob.Training(lr=LR, batch_size=BATCH)
            )
            contestants: dict[str, Callable[[], None]] = {"by hand": by_hand(learner, rounds, per_round)}
            widths = [32] if table == "A" else [1, 2, 4, 8, 16, 32, 64]
            if table == "A":
                contestants["in process"] = simulated(learner, rounds, per_round, None)
            for width in widths:
                contestants[f"batched {width}"] = simulated(learner, rounds, per_round, ob.Batched(width))
            seconds = by_turns(contestants, options.repeats)
            found = rows(name, seconds, rounds * per_round * STEPS, "by hand")
            show(found)
            kept[table] += found
        print(f"load: {', '.join(f'{x:.1f}' for x in os.getloadavg())}")
    if options.json:
        options.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
