"""A run of one site over a network in memory, whose scores are known; as a script it kills itself.

python tests/net/server/served_callbacks.py DIRECTORY VERSION|end
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import offbeat as ob
from offbeat.data import Dataset
from offbeat.net import join
from offbeat.net.server.service import Service
from offbeat.runs.evaluation_log import EvaluationLog
from offbeat.testing.network import MemoryNetwork
from tests.net.support import serve, terms_of

SCORES = (0.1, 0.3, 0.2, 0.6)  # of versions 0, 1, …; of all others 0.5
PATIENCE = ob.Until(versions=1000, early_stopping=ob.EarlyStopping("clients.score", 4))
EVERY = ob.Every(versions=1, at="both", keep_best="clients.score")


def module() -> nn.Module:
    """The model of version v has weights v."""
    made = nn.Linear(2, 2)
    nn.init.zeros_(made.weight)
    nn.init.zeros_(made.bias)
    return made


def version_of(model: ob.Model) -> int:
    return int(model.state_dict()["weight"][0, 0])


def train(task: ob.ClientTask) -> None:
    for _ in task.steps(task.batches()):
        pass
    task.submit({name: array + 1 for name, array in task.arrays().items()}, samples=4)


def evaluate(model: ob.Model, client: int) -> dict[str, float]:
    version = version_of(model)
    return {"score": SCORES[version] if version < len(SCORES) else 0.5}


class Told(ob.Callback):
    """Writes down what it is told; does something at an evaluation."""

    def __init__(self, act: Callable[[ob.LiveRun, Any], None] = lambda run, metrics: None) -> None:
        self.heard: list[Any] = []
        self.models: list[int] = []
        self._act = act

    def on_start(self, run: ob.LiveRun) -> None:
        self.heard.append(("start", run.past))

    def on_evaluation(self, run: ob.LiveRun, metrics: Any, model: ob.Model) -> None:
        assert run.directory is not None
        assert ob.read_run(run.directory).evaluations()[metrics.seq] == metrics  # it is durable
        self.heard.append(metrics)
        self.models.append(version_of(model))
        self._act(run, metrics)

    def on_end(self, run: ob.LiveRun, reason: str, model: ob.Model) -> None:
        assert run.directory is not None
        assert ob.read_run(run.directory).status == "finished"
        self.heard.append(("end", reason, version_of(model)))

    def on_exception(self, run: ob.LiveRun, error: BaseException) -> None:
        self.heard.append(("exception", type(error).__name__))


async def served(
    directory: Path,
    callbacks: Sequence[ob.Callback],
    until: ob.Until = PATIENCE,
    every: ob.Every = EVERY,
    started: Callable[[Service], None] | None = None,
) -> str | None:
    """Serve the run, with a site, to its end."""
    network = MemoryNetwork()
    test = Dataset(torch.ones(8, 2), torch.arange(8) % 2)
    own = ob.LoopLearner(train, None, 4, batch_size=4, held_out=3, evaluate_client=evaluate)
    algorithm = ob.fedbuff(1, steps=1, concurrency=1, server_lr=1.0)
    site = asyncio.create_task(join(network.connect("site"), learner=own))
    try:
        return await serve(
            algorithm, module, None, directory, network.listen, test=test, linger=1.0,
            options=terms_of(until=until, evaluate=every), callbacks=callbacks, started=started,
        )  # fmt: skip
    finally:
        site.cancel()
        await asyncio.gather(site, return_exceptions=True)


def reason_in(metrics: Sequence[Any], until: ob.Until = PATIENCE) -> str | None:
    """Why a run ends after these evaluations."""
    log = EvaluationLog(until)
    for metric in metrics:
        log.restore(metric)
    return log.reached


if __name__ == "__main__":
    from tests.net.server import served_callbacks as by_name  # where the other process finds the model

    place, when = Path(sys.argv[1]), sys.argv[2]

    def kill(run: ob.LiveRun, metrics: Any) -> None:
        evaluations = ob.read_run(place).evaluations()[: metrics.seq + 1]
        if metrics.version >= int(when) if when != "end" else reason_in(evaluations):
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(by_name.served(place, [by_name.Told(kill)]))
