"""How cost grows: with clients, with how many train at a time, with parameters, with worker processes.

    python benchmarks/growth.py [--smaller POWERS] [--only clients concurrency memory parameters workers]
                                [--json FILE] [--plot FILE.png]

Every point is measured in a process of its own, so its peak memory is its own. Nothing is trained, but for
half of the last table: what is timed is what Offbeat adds to training. An event is what the simulator takes
from its queue (an arrival, a request, a timer); with it go the commands it causes, their journal rows and the
aggregation. Start-up is the time of a run that ends with its first arrival, and is taken off the longer run's
time. In the first two tables that is the least of three runs: what else a machine does only adds to it.

FedASMU's clients do not ask for fresh models: what learns when to ask is a network that is trained.
FedCompass and FedAT train everybody, so of them there are as many at a time as there are clients.

A Ray cluster is two nodes on this machine, of one processor each, where Ray is installed.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ALGORITHMS = ("fedavg", "fedbuff", "fedasync", "fedfa", "port", "fedasmu", "fedcompass", "fedat")
EVERYBODY = ("fedcompass", "fedat")  # train all clients
PARAMETERS = 21_840
UPDATES = 10  # in one aggregation


@dataclass(frozen=True)
class Point:
    """One measurement: a run, or, without an algorithm, aggregations of so many parameters."""

    table: str
    algorithm: str = ""
    clients: int = 0
    concurrency: int = 0
    parameters: int = 0
    workers: int = 0
    ray: bool = False
    trains: bool = False
    directory: bool = False
    events: int = 20_000
    runs: int = 1


def points(smaller: int) -> Iterator[Point]:
    """Every measurement, table by table, with sizes that are so many powers of ten smaller."""
    last, fewer = 6 - smaller, 10**smaller
    events = max(1_000, 20_000 // fewer)  # fewer events do not outweigh what the first of a process costs
    for clients in (10**k for k in range(2, last + 1)):
        for name in ALGORITHMS:
            if name not in EVERYBODY:
                yield Point("clients", name, clients, 100, events=events, runs=3)
    for concurrency in (10**k for k in range(last - 1)):
        for name in ALGORITHMS:
            clients = concurrency if name in EVERYBODY else 10**last
            enough = max(events, 3 * concurrency)
            yield Point("concurrency", name, clients, concurrency, events=enough, runs=3)
    for directory in (False, True):
        for name in ALGORITHMS:
            if name not in EVERYBODY:
                yield Point(
                    "memory", name, 10**last, 10 ** (last - 2), PARAMETERS, directory=directory,
                    events=events,
                )  # fmt: skip
    for parameters in (10**k for k in range(4, 9 - smaller)):
        yield Point("parameters", parameters=parameters)
    for trains in (False, True):
        for workers, ray in ((0, False), (1, False), (2, False), (2, True)):
            tasks = max(100, (1_000 if trains else 10_000) // fewer)
            yield Point("workers", "fedbuff", 100, 10, PARAMETERS, workers, ray, trains, events=tasks)


# ---- one point, in a process of its own ----


def measure(point: Point) -> dict[str, Any]:
    """Measure one point in this process."""
    import offbeat  # noqa: F401  here, so that whoever starts the processes stays small

    before = _peak()
    found = aggregations(point) if not point.algorithm else run(point)
    return {**asdict(point), **found, "MiB": _peak(), "MiB_import": before}


def run(point: Point) -> dict[str, Any]:
    """Start-up, then so many events."""
    import offbeat as ob
    from offbeat.sim.result import MemoryRecorder

    c = point.concurrency
    made: dict[str, Callable[[], ob.Algorithm]] = {
        "fedavg": lambda: ob.fedavg(steps=20, clients_per_round=c),
        "fedbuff": lambda: ob.fedbuff(size=10, steps=20, concurrency=c),
        "fedasync": lambda: ob.fedasync(steps=20, concurrency=c),
        "fedfa": lambda: ob.fedfa(size=10, steps=20, concurrency=c),
        "port": lambda: ob.port(size=10, steps=20, concurrency=c),
        "fedasmu": lambda: ob.fedasmu(steps=20, size=c, period=1.0, threshold=c, ask={"kind": "never"}),
        "fedcompass": lambda: ob.fedcompass(q_min=20, q_max=100),
        "fedat": lambda: ob.fedat(steps=20),
    }
    learner = digits(point.clients) if point.trains else ob.NoTraining(point.clients, point.parameters)
    world = ob.World(ob.laws.Exponential(1.0, minimum=0.05), jitter=0.05)

    def timed(tasks: int) -> tuple[float, float, int]:
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "run" if point.directory else None
            began, used = time.perf_counter(), time.process_time()
            done = ob.simulate(
                made[point.algorithm](), world, learner,
                until=ob.Until(tasks=tasks), evaluate=None, out=out,
                executor=ob.OnRay(workers=point.workers) if point.ray else None,
                workers=0 if point.ray else point.workers,
            )  # fmt: skip
            used, wall = time.process_time() - used, time.perf_counter() - began
            kinds: Any = (
                (row.kind for row in done.source.written) if isinstance(done.source, MemoryRecorder)
                else (kind for (kind,) in ob.read_run(done.path or "").select("SELECT kind FROM journal"))
            )  # fmt: skip
            return used, wall, sum(kind == "event" for kind in kinds)

    with two_nodes() if point.ray else nullcontext():
        first, first_wall, before = timed(1)
        used, wall, events = min(timed(point.events) for _ in range(point.runs))
    per_event = 1e6 / (events - before)
    return {
        "startup_s": first_wall,
        "us_per_event": per_event * (used - first),
        "us_per_event_wall": per_event * (wall - first_wall),
    }


def digits(clients: int) -> Any:
    """Small real training: an MLP of 15,010 parameters on the digits, 14 samples a client."""
    from functools import partial

    import numpy as np

    import offbeat as ob
    from offbeat.models.mlp import MLP

    source = ob.load("digits", seed=0)
    parts = np.array_split(np.arange(len(source.train.y)), clients)
    return ob.TorchLearner(
        partial(MLP, 64, 10, (200,)), ob.federate(source, None, parts), ob.Training(lr=0.1, batch_size=10)
    )


@contextmanager
def two_nodes() -> Iterator[None]:
    """A Ray cluster of two nodes on this machine, which this process joins."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 100 * 10**6}
    cluster = Cluster(True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    ray.init(cluster.address, logging_level="error", log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def aggregations(point: Point) -> dict[str, Any]:
    """Milliseconds of an aggregation of ten updates, on one core and on all; the bits must be the same."""
    import torch

    from offbeat.algorithms.fedbuff import fedbuff
    from offbeat.core.commands import Aggregate
    from offbeat.core.global_model import GlobalModel
    from offbeat.core.layout import Layout
    from offbeat.core.learner import LocalResult
    from offbeat.core.model import Model
    from offbeat.core.schedule import Task

    torch.set_num_threads(1)
    zeros = Model.empty(Layout.flat(point.parameters))
    generator = torch.Generator().manual_seed(0)
    deltas = [torch.randn(point.parameters, generator=generator) for _ in range(UPDATES)]
    cores = sorted(os.sched_getaffinity(0))

    def aggregate(use: int) -> tuple[float, torch.Tensor]:
        os.sched_setaffinity(0, cores[:use])
        tensors = GlobalModel(fedbuff(size=UPDATES), zeros)
        for number, delta in enumerate(deltas):
            tensors.dispatch(number)
            task = Task(number, number, 0, 1, 0.0, 0, 1, 1 / UPDATES, number, UPDATES)
            tensors.arrive(task, LocalResult(delta, zeros.integers))
        began = time.perf_counter()
        tensors.aggregate(Aggregate(tuple(range(UPDATES)), version=1))
        return 1e3 * (time.perf_counter() - began), tensors.model.values

    repeats = max(5, min(200, int(2e8 / point.parameters)))
    one, every = [], []
    for _ in range(repeats):
        one.append(aggregate(1)[0])
        every.append(aggregate(len(cores))[0])
    same = torch.equal(aggregate(1)[1], aggregate(len(cores))[1])
    return {"ms_one_core": sorted(one)[repeats // 2], "ms": sorted(every)[repeats // 2], "same_bits": same}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ---- all of them ----


def fresh(point: Point) -> dict[str, Any]:
    """Measure one point in a new process."""
    command = [sys.executable, __file__, "--point", json.dumps(asdict(point))]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(answer.splitlines()[-1])
    return found


def machine() -> str:
    """What was measured on, and how busy it was."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load}"


def show(rows: list[dict[str, Any]]) -> None:
    """One table."""
    table = rows[0]["table"]
    if table == "parameters":
        print(f"\n{'parameters':>12} {'one core':>12} {'every core':>12} {'peak MiB':>9}  same bits")
        for r in rows:
            print(f"{r['parameters']:12,} {r['ms_one_core']:9.3f} ms {r['ms']:9.3f} ms ", end="")
            print(f"{r['MiB']:9.0f}  {'yes' if r['same_bits'] else 'NO'}")
        return
    if table == "workers":
        print(f"\n{table:18}    task, wall   here, processor  start-up   peak MiB")
        for r in rows:
            print(f"  {where(r):23}{r['us_per_event_wall']:7,.0f} us {r['us_per_event']:12,.0f} us ", end="")
            print(f"{r['startup_s']:8.2f} s {r['MiB']:10.0f}")
        return
    head = "   clients  at a time   events/s  us/event  start-up   peak MiB"
    print(f"\n{table:18} {head}")
    for r in rows:
        name = r["algorithm"] + (" disk" if r["directory"] else "")
        print(
            f"  {name:17}{r['clients']:10,} {r['concurrency']:10,} {1e6 / r['us_per_event']:10,.0f} ", end=""
        )
        print(f"{r['us_per_event']:9.1f} {r['startup_s']:7.2f} s {r['MiB']:10.0f}")


def where(row: dict[str, Any]) -> str:
    """What computes the tasks, and whether they are trained."""
    count = row["workers"]
    place = "Ray, 2 nodes" if row["ray"] else f"{count} worker{'s' * (count > 1)}" if count else "here"
    return f"{place}, {'MLP' if row['trains'] else 'nothing'}"


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Six panels."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    from offbeat.report.palette import choose_styles

    figure, axes = pyplot.subplots(2, 3, figsize=(15, 7.5), layout="constrained")
    curves = [axes[0, 0], axes[0, 1], axes[1, 0]]
    styles = choose_styles(ALGORITHMS)
    panels: list[tuple[str, str, str, str]] = [
        ("clients", "clients", "events per second", "100 clients train at a time"),
        ("concurrency", "concurrency", "events per second", "of 1,000,000 clients, so many train at a time"),
        ("clients", "clients", "peak memory beyond the import (MiB)", "100 clients train at a time"),
    ]
    for axis, (table, x, y, title) in zip(curves, panels, strict=True):
        for i, name in enumerate(ALGORITHMS):
            own = [r for r in rows if r["table"] == table and r["algorithm"] == name]
            if not own:
                continue
            values = [1e6 / r["us_per_event"] if "events" in y else r["MiB"] - r["MiB_import"] for r in own]
            axis.plot(
                [r[x] for r in own], values, marker="os^vDPX*"[i], ms=5, lw=1.4, color=styles[name].colour,
                label=name,
            )  # fmt: skip
        axis.set(xscale="log", yscale="log", title=title, ylabel=y)
        axis.set_xlabel({"clients": "clients", "concurrency": "clients that train at a time"}[x])
    for axis in axes[0, :2]:
        axis.set_ylim(1e3, 2e5)
    axes[0, 1].legend(fontsize=8, ncols=2, loc="lower left")
    axes[1, 0].set_ylim(10, 1000)
    own = [r for r in rows if r["table"] == "parameters"]
    last = axes[1, 1]
    for key, label, style in (("ms_one_core", "one core", "o--"), ("ms", "every core", "s-")):
        last.plot([r["parameters"] for r in own], [r[key] for r in own], style, ms=5, lw=1.4, label=label)
    last.set(xscale="log", yscale="log", xlabel="parameters", ylabel="milliseconds")
    last.set_title(f"An aggregation of {UPDATES} updates")
    last.legend(fontsize=8)
    plot_memory([r for r in rows if r["table"] == "memory"], axes[0, 2])
    plot_tasks([r for r in rows if r["table"] == "workers"], axes[1, 2])
    for axis in axes.flat:
        axis.set_axisbelow(True)
        axis.grid(True, which="major", color="0.9", lw=0.8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def plot_memory(rows: list[dict[str, Any]], axis: Any) -> None:
    """The peak of each algorithm, with its journal in memory."""
    own = [r for r in rows if not r["directory"]]
    axis.barh([r["algorithm"] for r in own], [r["MiB"] for r in own], color="C0", height=0.6)
    axis.invert_yaxis()
    axis.set(xlabel="peak memory (MiB)", title=f"10,000 at a time, {PARAMETERS:,} parameters")


def plot_tasks(rows: list[dict[str, Any]], axis: Any) -> None:
    """What a task takes on each executor, trained and not."""
    for trains, color, label, shift in ((False, "C0", "nothing", -0.2), (True, "C1", "a small MLP", 0.2)):
        own = [r for r in rows if r["trains"] == trains]
        heights = [r["us_per_event_wall"] for r in own]
        axis.bar([i + shift for i in range(len(own))], heights, 0.38, color=color, label=label)
    names = [where(r).split(", no")[0] for r in rows if not r["trains"]]
    axis.set_xticks(range(len(names)), names, fontsize=8)
    axis.set(yscale="log", ylabel="microseconds", title="A task, wall time")
    if rows:
        axis.margins(y=0.25)
        axis.legend(fontsize=8, title="trained", ncols=2, loc="upper left")


def main() -> None:
    """Measure, print, and write what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = ("clients", "concurrency", "memory", "parameters", "workers")
    parser.add_argument(
        "--smaller", type=int, choices=range(5), default=0, metavar="POWERS",
        help="make the largest sizes 10^POWERS times smaller, 0 to 4",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=tables, default=tables)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(measure(Point(**json.loads(options.point)))))
        return
    print(machine())
    rows: list[dict[str, Any]] = []
    for table in options.only:
        mine = []
        for point in points(options.smaller):
            if point.table == table and point.ray and find_spec("ray") is None:
                print('No Ray: it is not installed (pip install -e ".[ray]")', file=sys.stderr)
            elif point.table == table:
                mine.append(fresh(point))
                print(".", end="", file=sys.stderr, flush=True)
        show(mine)
        rows += mine
    print(f"\n{machine()}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
