"""Updates a second through Flower: a SuperLink and its SuperNodes on this machine's loopback.

    python benchmarks/flower_throughput.py [--messages 5] [--native PYTHON]

FedAsync with a model of 1 MB and of 100 MB, on one node and on four; a task is one step on one sample, so
nearly all of its time is the message's. What is counted, from the journal: of each node the seconds from one
update to its next, and of all together the updates a second between the first and the last. Flower starts a
process for each message, which imports PyTorch and Flower anew: about eight seconds of a processor. So the 60
messages take minutes on an idle machine. All cases together have `--patience` seconds; one that has not ended
by then is printed as failed, with what Flower's logs have of it, and the others are not begun.

Needs the extra `flower`. `--native` is a Python with `offbeat[net]`, which wants another protobuf:
with it `round_trip.py` first measures the same sizes on Offbeat's own server and on raw gRPC, every update on
disk before its answer. It needs 8 GB, and 15 GB of disk. Machines are noisy, and the load is printed.
"""

import os
import subprocess
import tempfile
import time
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal

from flower_app import federation, has_ended, where, write_app
from harness import Rows, main, spread

import offbeat as ob
from offbeat.runs.schema import DATABASE
from tests.flower.superlink import LocalFederation
from tests.storm.processes import leave_when_told

SIZES = {"1 MB": 250_000, "100 MB": 25_000_000}  # values of four bytes
NODES = (1, 4)
SECONDS = "s from update to update (least to most)"
CLIENT = """
import torch
from offbeat.data.dataset import Dataset
from offbeat.flower import client_app

def data(context):
    x = torch.randn(1, int(context.run_config["features"]), generator=torch.Generator().manual_seed(0))
    return Dataset(x, torch.zeros(1, dtype=torch.int64), 2)

app = client_app(data)
"""
SERVER = """
import offbeat as ob
from flwr.serverapp import ServerApp
from offbeat.flower import serve
from offbeat.models.specs import LogisticSpec
from offbeat.net import ServerOptions, server_learner

app = ServerApp()

@app.main()
def main(grid, context):
    c = context.run_config
    learner = server_learner(
        LogisticSpec(), ob.Training(lr=0.1, batch_size=1), sample_shape=(int(c["features"]),), classes=2
    )
    experiment = ob.Experiment(ob.fedasync(steps=1), learner, until=ob.Until(tasks=int(c["tasks"])))
    serve(grid, experiment, c["state"], options=ServerOptions(clients=int(c["clients"]), lease=3600.0))
"""
CONFIG = {"state": "", "clients": 1, "tasks": 1, "features": 1}


def features(values: int) -> int:
    """The inputs of a logistic regression of two classes that has so many values: weights and biases."""
    return values // 2 - 1


def run(home: Path, values: int, nodes: int, messages: int, patience: float) -> dict[str, Any]:
    """So many tasks of each node, after each one's first; what came of it."""
    app, directory = write_app(home / "app", CLIENT, SERVER, CONFIG), home / "run"
    began = time.monotonic()
    with federation(home, nodes) as made:
        tasks = nodes * (messages + 1)
        settings = (
            f'state="{directory}"',
            f"clients={nodes}",
            f"tasks={tasks}",
            f"features={features(values)}",
        )
        made.run(app, settings)
        has_ended(directory, patience)
        return figures(directory) | {"seconds": time.monotonic() - began, "log": said(made)}


def figures(directory: Path) -> dict[str, Any]:
    """What a run's journal has: how it ended, and how fast its updates came."""
    if not (directory / DATABASE).is_file():
        return {"status": "never begun", "tasks": [], "rate": None, "lost": []}
    record = ob.read_run(directory)
    rows = list(record.rows())
    arrived: dict[int | None, list[float]] = {}
    for row in rows:
        if row.name == "arrived":
            arrived.setdefault(row.client, []).append(row.t)
    tasks = [later - t for times in arrived.values() for t, later in pairwise(times)]
    every = sorted(t for times in arrived.values() for t in times)
    span = every[-1] - every[0] if every else 0.0
    return {
        "status": record.status,
        "tasks": tasks,
        "rate": (len(every) - 1) / span if span else None,
        "lost": [row.name for row in rows if row.name in ("lost", "left")],
    }


def said(made: LocalFederation) -> list[str]:
    """What Flower's programs and Offbeat complained about."""
    words = ("ERROR", "Error", "WARNING :", "Traceback", "RESOURCE_EXHAUSTED")
    return [
        f"{name}: {line.strip()[:300]}"
        for name in made.processes
        for line in made.log(name).splitlines()
        if any(word in line for word in words)
    ]


def beside_flower(python: str) -> dict[tuple[str, int], tuple[str, str]]:
    """Updates a second of Offbeat's own server and of raw gRPC, by model and sites: from `round_trip.py`."""
    command = [python, str(Path(__file__).with_name("round_trip.py")), "--connections", "0", "--repeats", "3"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()]
    return {(row[0], int(row[1])): (row[3], row[4]) for row in rows if len(row) > 5 and row[2] == "both"}


def flower_throughput(
    messages: int = 5, sizes: tuple[Literal["1 MB", "100 MB"], ...] = tuple(SIZES),
    nodes: tuple[int, ...] = NODES, patience: float = 1800.0, native: str | None = None,
) -> Rows:  # fmt: skip
    """Measure each case.

    messages: of each node, after its first
    patience: seconds for all cases
    native: a Python with offbeat[net], to measure that too
    """
    leave_when_told()  # so that no process of Flower's stays
    beside = beside_flower(native) if native else {}
    until = time.monotonic() + patience
    for size, number in product(sizes, nodes):
        if (left := until - time.monotonic()) <= 0:
            yield {"model": size, "nodes": number, SECONDS: "failed: no time was left for it"}
            continue
        with tempfile.TemporaryDirectory(prefix="offbeat-flower-") as home:
            found = run(Path(home), SIZES[size], number, messages, left)
        own, raw = beside.get((size, number), (None, None))
        well = found["status"] == "finished" and found["tasks"]
        failed = f"failed: {found['status']} after {found['seconds']:.0f} s"
        yield {
            "model": size, "nodes": number,
            SECONDS: spread(found["tasks"]) if well else failed,
            "updates/s": found["rate"] if well else None, "Offbeat's own server": own, "raw gRPC": raw,
            "load": f"{os.getloadavg()[0]:.1f}",
        }  # fmt: skip
        for line in found["log"][-10:] if found["status"] != "finished" or found["lost"] else []:
            print(f"  {line}", flush=True)
    yield where()


if __name__ == "__main__":
    main(flower_throughput)
