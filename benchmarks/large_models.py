"""Memory of a server of large models, in sizes of its model.

    python benchmarks/large_models.py [--megabytes 300] [--updates 4] [--sites 1 2]

A server and its sites, which need no time to train, are processes of their own. What is told is the most
memory that the server has had since its start and since its first update, less what a server of a small model
has, in models; and the median of what it had. A model of more than 256 MiB shows what one of 1 GB takes: the
pool of vectors keeps smaller ones.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from multiprocessing import Process
from pathlib import Path
from statistics import median

import offbeat  # noqa: F401  before PyTorch, as the command has it

# isort: split
import torch
from processes import fork, kill
from round_trip import exchanges, features, limits, tell

from offbeat.core.layout import Layout

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


def measured(place: Path, kind: str, values: int, sites: int, updates: int) -> tuple[float, float, float]:
    """MiB of a server: the most at its start, the most afterwards, the median between its samples."""
    state = place / f"{kind}-{values}-{sites}"
    server = fork(lambda: serve_run(state, kind, values, sites), state.with_suffix(".log"))
    try:
        told = state.with_suffix(".json")
        while not told.exists():
            time.sleep(0.1)
        at_start = memory(server, "VmHWM")
        Path(f"/proc/{server}/clear_refs").write_text("5", encoding="ascii")  # forgets the most so far
        address = f"127.0.0.1:{told.read_text(encoding='ascii')}"
        work, seen = Process(target=train, args=(address, values, sites, updates)), []
        work.start()
        while work.is_alive():
            seen.append(memory(server, "VmRSS"))
            work.join(0.1)
        if work.exitcode:
            raise RuntimeError(f"the sites have failed: see {state}.log")
        return at_start, memory(server, "VmHWM"), median(seen)
    finally:
        kill(server)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--updates", type=int, default=4, help="of each site")
    parser.add_argument("--sites", type=int, nargs="+", default=[1, 2])
    chosen = parser.parse_args()
    values, model = chosen.megabytes * 250_000, chosen.megabytes * 1e6 / 2**20
    print("| algorithm | sites | most at the start | most with updates | median |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="offbeat-large-models-") as name:
        for kind in KINDS:
            for sites in chosen.sites:
                bare = measured(Path(name), kind, SMALL, sites, chosen.updates)
                found = measured(Path(name), kind, values, sites, chosen.updates)
                models = [f"{(own - less) / model:.1f}" for own, less in zip(found, bare, strict=True)]
                print(f"| {kind} | {sites} | {' | '.join(models)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
