"""What training many clients together saves: the executor `Batched` beside a loop written by hand.

    python benchmarks/batched.py [--repeats 5] [--rounds 20] [--models logistic mlp cnn compass]
        [--tables AB]

A: 100 clients with 600 images of Fashion-MNIST each, 10 in a round of FedAvg, 20 steps with batches of 32.
   The loop is plain PyTorch: for each client it loads the model, does the same SGD steps on batches it has
   ready, and adds the result to the mean. It has no clock and no journal. Nobody evaluates anything.
B: the same with 64 clients in a round, trained together 1, 2, 4 … 64 at a time.

All on one thread, what is compared by turns; medians with their range.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Literal

import numpy as np
import torch
from harness import Rows, in_turns, main, ratios, spread
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


def timed(run: Callable[[], None]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    began = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - began[0], time.process_time() - began[1]


def batched(
    repeats: int = 5, rounds: int = 20, models: tuple[str, ...] = tuple(MODELS), data: str = "fashion_mnist",
    tables: Literal["A", "B", "AB"] = "AB",
) -> Rows:  # fmt: skip
    torch.set_num_threads(1)
    source = ob.load(data, seed=0)
    shape, classes = source.train.sample_shape, source.train.classes
    federated = ob.federate(source, None, np.array_split(np.arange(len(source.train)), CLIENTS))
    for table, name in product(tables, models):
        per_round, widths = (10, [32]) if table == "A" else (64, [1, 2, 4, 8, 16, 32, 64])
        own_rounds, spec = max(1, rounds * 10 // per_round), MODELS[name]
        learner = ob.TorchLearner(
            partial(build, spec, shape, classes), federated, ob.Training(lr=LR, batch_size=BATCH)
        )
        contestants = {"by hand": by_hand(learner, own_rounds, per_round)}
        executors = {"in process": None} if table == "A" else {}
        for training, executor in (
            executors | {f"batched {width}": ob.Batched(width) for width in widths}
        ).items():
            contestants[training] = simulated(learner, own_rounds, per_round, executor)
        turns = in_turns(repeats + 1, {name: partial(timed, run) for name, run in contestants.items()})
        seconds = {training: list(zip(*own[1:], strict=True)) for training, own in turns.items()}
        for training, (wall, cpu) in seconds.items():
            hand = seconds["by hand"]
            micro = [1e6 * each / (own_rounds * per_round * STEPS) for each in wall]
            yield {
                "table": table, "model": name, "training": training, "us a step": spread(micro),
                "wall, by hand": spread(ratios(wall, hand[0])), "CPU, by hand": spread(ratios(cpu, hand[1])),
            }  # fmt: skip


if __name__ == "__main__":
    main(batched)
