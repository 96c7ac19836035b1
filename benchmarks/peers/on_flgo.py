"""FLGo's simulation in one process, with its virtual clock for the asynchronous algorithms."""

import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from job import Answer, Client, Job, Stopwatch, UnavailableError, accuracy, load, run
from nets import Seen, build
from stand_in import stand_in

stand_in("torchvision")

import flgo  # noqa: E402
import flgo.benchmark.base  # noqa: E402
from flgo.algorithm import fedasync, fedavg, fedbuff  # noqa: E402
from flgo.benchmark.toolkits.cv.classification import GeneralCalculator  # noqa: E402
from flgo.experiment.logger import BasicLogger  # noqa: E402

SERVERS = {"fedavg": fedavg.Server, "fedbuff": fedbuff.Server, "fedasync": fedasync.Server}
CLIENTS = {"fedavg": fedavg.Client, "fedbuff": fedbuff.Client, "fedasync": fedavg.Client}  # no proximal term


class Quiet(BasicLogger):
    """Keeps no record."""

    def log_once(self, *args: Any, **kwargs: Any) -> None:
        """Evaluates nothing."""


def pipe(clients: list[Any]) -> type:
    """How FLGo's task gets its clients' data: as it is."""

    class TaskPipe(flgo.benchmark.base.BasicTaskPipe):
        """The data of clients, in memory."""

        def load_data(self, running_time_option: Any) -> dict[str, Any]:
            """Train data for each client, none for the server."""
            own = {
                name: {"train": data}
                for name, data in zip(self.feddata["client_names"], clients, strict=True)
            }
            return {"server": {"test": None}, **own}

    return TaskPipe


class Calculator(GeneralCalculator):
    """The classification calculator; a client's loader gives a task's batches by indexing."""

    def get_dataloader(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """The client itself."""
        return dataset


def make_task(folder: str, job: Job, clients: list[Any]) -> None:
    """What FLGo reads of a task: which benchmark, and the clients' names."""
    benchmark, core = ModuleType("speed_task"), ModuleType("speed_task.core")
    core.TaskPipe, core.TaskCalculator = pipe(clients), Calculator  # type: ignore[attr-defined]
    sys.modules.update({"speed_task": benchmark, "speed_task.core": core})
    for name in ("record", "log"):
        (Path(folder) / name).mkdir()
    (Path(folder) / "info").write_text(json.dumps({"benchmark": "speed_task"}))
    names = [f"Client{number:03}" for number in range(job.clients)]
    (Path(folder) / "data.json").write_text(json.dumps({"client_names": names}))


def measure(job: Job) -> Answer:
    """FedAvg rounds, or FedBuff and FedAsync with ten clients at a time, whose latency is drawn."""
    if job.algorithm not in SERVERS:
        raise UnavailableError(f"FLGo has no {job.algorithm}.")
    data = load(job.data) if job.data else None
    done = 0

    class Counted(CLIENTS[job.algorithm]):  # type: ignore[misc]
        """FLGo's client; a task without work trains nothing."""

        def train(self, model: Any) -> None:
            """Count, and train."""
            nonlocal done
            done += 1
            if data is not None:
                super().train(model)

    class Algorithm:
        """What FLGo calls an algorithm."""

        Server = SERVERS[job.algorithm]
        Client = Counted

    clients = [Client(data, i, job) if data is not None else [0] for i in range(job.clients)]
    option = {
        "num_rounds": job.rounds, "proportion": job.per_round / job.clients, "num_steps": job.steps,
        "batch_size": job.batch, "learning_rate": job.lr, "seed": job.seed, "eval_interval": -1,
        "sample": "uniform", "no_tqdm": True, "log_level": "ERROR", "no_log_console": True,
        "train_holdout": 0.0,
        "responsiveness": "IDL" if job.algorithm == "fedavg" else "LN-20-100",
    }  # fmt: skip
    words, sys.argv = sys.argv, sys.argv[:1]  # FLGo reads the command line
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_task(folder, job, clients)
        model = flgo.convert_model(lambda: build(job.model, job.seed), "net")
        runner = flgo.init(folder, Algorithm, option, model=model, Logger=Quiet)
        runner.register_exit_condition(lambda _: done >= job.tasks)
        with Stopwatch() as watch:
            runner.run()
        os.chdir("/")
    sys.argv = words
    seen = Seen.batches, Seen.samples
    right = accuracy(runner.model.model, data) if data is not None else None
    return Answer(watch.seconds, done, *seen, watch.cpu, accuracy=right, version=version("flgo"))


if __name__ == "__main__":
    run(measure)
