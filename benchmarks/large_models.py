"""Memory of a server of large models, in sizes of its model.

    python benchmarks/large_models.py [--megabytes 300] [--updates 4] [--sites 1 2]

A server and its sites, which need no time to train, are processes of their own. What is told is the most
memory that the server has had since its start and since its first update, less what a server of a small model
has, in models; and the median of what it had. Then the server is killed while updates are logged that no
checkpoint has, and started again: the most memory until it serves is told too, with the number of these
updates. A model of more than 256 MiB shows what one of 1 GB takes: the pool of vectors keeps smaller ones.
"""

import asyncio
import shutil
import tempfile
import time
from itertools import product
from multiprocessing import Process
from pathlib import Path
from statistics import median
from typing import NamedTuple

import offbeat  # noqa: F401  before PyTorch, as the command has it

# isort: split
import torch
from harness import Rows, main
from round_trip import exchanges, features, limits, tell

from offbeat.core.layout import Layout
from offbeat.net.server.stored_updates import NEWEST
from offbeat.runs.record import read_run
from tests.storm.processes import fork, has_ended, kill

FOREVER = 10**9
SMALL = 2
"""Values of a model whose server has the memory that is taken off."""
KINDS = ("fedasync", "fedbuff")


def serve_run(state: Path, kind: str, values: int, clients: int) -> None:
    """Serve FedAsync, or FedBuff with a version of all sites' updates."""
    torch.set_num_threads(1)
    asyncio.run(_serve_run(state, kind, values, clients))


async def _serve_run(state: Path, kind: str, values: int, clients: int) -> None:
    import offbeat as ob
    from offbeat.models.specs import LogisticSpec
    from offbeat.net import ServerOptions, serve, server_learner

    algorithm = ob.fedasync(steps=1) if kind == "fedasync" else ob.fedbuff(steps=1, size=clients)
    training = ob.Training(lr=0.1, batch_size=10)
    learner = server_learner(LogisticSpec(), training, sample_shape=(features(values),), classes=1)
    experiment = ob.Experiment(algorithm, learner, until=ob.Until(tasks=FOREVER))
    options, most = ServerOptions(clients=clients, lease=600.0), limits(Layout.flat(values))
    async with serve(experiment, state, "127.0.0.1:0", options=options, limits=most) as server:
        tell(state.with_suffix(".json"), server.port)
        await server.ended()


def train(address: str, values: int, sites: int, updates: int) -> None:
    """Let so many sites deliver, each so many updates."""
    torch.set_num_threads(1)

    async def all_sites() -> None:
        await asyncio.gather(*(exchanges(address, values, updates, f"site-{i}") for i in range(sites)))

    asyncio.run(all_sites())


def memory(pid: int, key: str) -> float:
    """MiB of a process: `VmRSS` now, `VmHWM` at most so far."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{key}:"))) / 1024


class Server:
    """A server in a process of its own, which serves once this is made.

    Attributes:
        state: Its state directory.
        pid: Its process.
        address: Where it listens.
        at_start: MiB that it has had at most until it served.
    """

    def __init__(self, state: Path, kind: str, values: int, sites: int) -> None:
        self.state, told = state, state.with_suffix(".json")
        told.unlink(missing_ok=True)
        self.pid = fork(lambda: serve_run(state, kind, values, sites), state.with_suffix(".log"))
        while not told.exists():
            if has_ended(self.pid):
                raise RuntimeError(f"the server has failed: see {state}.log")
            time.sleep(0.1)
        self.at_start = memory(self.pid, "VmHWM")
        self.address = f"127.0.0.1:{told.read_text(encoding='ascii')}"

    def deliver(self, values: int, sites: int, updates: int) -> tuple[float, float]:
        """Have sites deliver, each so many updates; returns the most MiB meanwhile, and their median."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")  # forgets the most so far
        work, seen = Process(target=train, args=(self.address, values, sites, updates)), []
        work.start()
        while work.is_alive():
            seen.append(memory(self.pid, "VmRSS"))
            work.join(0.1)
        if work.exitcode:
            raise RuntimeError(f"the sites have failed: see {self.state}.log")
        return memory(self.pid, "VmHWM"), median(seen)

    def logged(self) -> int:
        """Number of updates that no checkpoint has."""
        return int(next(read_run(self.state).select(f"SELECT count(*) FROM {NEWEST}"))[0])


class Measured(NamedTuple):
    """MiB of a server: at most until it serves, with updates, their median, at most at a restart.

    The last number is that of the updates which were logged at the restart.
    """

    start: float
    updates: float
    median: float
    restart: float
    logged: int


def measured(place: Path, kind: str, values: int, sites: int, updates: int) -> Measured:
    """Measure a server, which is killed and started again."""
    state = place / f"{kind}-{values}-{sites}"
    server = Server(state, kind, values, sites)
    try:
        most, usual = server.deliver(values, sites, updates)
        # A checkpoint may have come after the last update.
        while not (logged := server.logged()):
            server.deliver(values, sites, 1)
    finally:
        kill(server.pid)
    again = Server(state, kind, values, sites)
    kill(again.pid)
    shutil.rmtree(state)
    return Measured(server.at_start, most, usual, again.at_start, logged)


def large_models(megabytes: int = 300, updates: int = 4, sites: tuple[int, ...] = (1, 2)) -> Rows:
    """Measure both algorithms.

    updates: of each site
    """
    values, model = megabytes * 250_000, megabytes * 1e6 / 2**20
    with tempfile.TemporaryDirectory(prefix="offbeat-large-models-") as name:
        for kind, number in product(KINDS, sites):
            bare = measured(Path(name), kind, SMALL, number, updates)
            found = measured(Path(name), kind, values, number, updates)
            models = [f"{(own - less) / model:.1f}" for own, less in zip(found[:-1], bare[:-1], strict=True)]
            heads = ("most at the start", "most with updates", "median", "most at a restart")
            figures = dict(zip(heads, models, strict=True))
            yield {"algorithm": kind, "sites": number, **figures, "logged": found.logged}


if __name__ == "__main__":
    main(large_models)
