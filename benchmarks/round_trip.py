"""The whole server on loopback: coordinator, state directory and links; how long and how much.

    python benchmarks/round_trip.py [--tasks 500] [--repeats 5] [--connections 500]

Round trip: what a task with a model of one value costs a site that needs no time to train, from its update to
the next task; beside it the same update with nothing made durable, and what a small fsync takes here.
Throughput: updates a second of one site and of four with models of 1 KB, 1 MB and 100 MB, and of
`raw_grpc.py` with the same bytes each way (a model down, an update up) on as many streams, in turns; with
every update on disk before it is answered, and with nothing written on either side: then a server answers
as it does where a message leads to nothing durable. Raw gRPC is started anew each time, two processes,
since its speed depends on where the C library puts its chunks. Offbeat asks glibc to keep freed memory,
which helps raw gRPC too: so it is measured as it comes, and with that. Beside it, what server and sites
take of the processor for an update, the least of all turns: what else the machine does only adds to it.
Many sites: memory and processor's time of the
server's process with so many connected, idle (only beats) and active (each a task every so many seconds).
Servers are processes of their own. It needs 8 GB, and 15 GB of disk.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import offbeat  # noqa: F401  before PyTorch, as the command has it

# isort: split
import torch
from harness import Row, Rows, main

from offbeat.core.layout import Layout
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.messages import Heartbeat, Register, TaskAssignment, UpdateSubmission
from offbeat.net.transport import ChannelClosedError, ClientChannel
from offbeat.net.wire.limits import Limits
from offbeat.vectors.allocator import KEPT, LARGEST
from tests.storm.processes import fork, kill, leave_when_told

NONE = torch.zeros(0, dtype=torch.int64)
RATE = 1e6  # messages a second: no limit here
FOREVER = 10**9
SIZES = (
    ("1 KB", 250, 1, 2000), ("1 KB", 250, 4, 1000),
    ("1 MB", 250_000, 1, 400), ("1 MB", 250_000, 4, 200),
    ("100 MB", 25_000_000, 1, 10), ("100 MB", 25_000_000, 4, 6),
)  # fmt: skip
"""A model, its values, so many sites, so many updates of each."""
KEEPS = {"MALLOC_TRIM_THRESHOLD_": str(KEPT), "MALLOC_MMAP_THRESHOLD_": str(LARGEST)}
"""What glibc is told of to keep freed memory, as `offbeat.vectors.allocator` tells it."""


# ---- servers, each in a process of its own ----


def serve_run(state: Path, values: int, clients: int, durable: bool) -> None:
    """FedAsync with a model of so many values. Without `durable` nothing is written."""
    torch.set_num_threads(1)
    asyncio.run(_serve_run(state, values, clients, durable))


async def _serve_run(state: Path, values: int, clients: int, durable: bool) -> None:
    import offbeat as ob
    from offbeat.models.specs import LogisticSpec
    from offbeat.net import ServerOptions, serve, server_learner
    from offbeat.net.server.durable_store import DurableStore
    from offbeat.net.server.effects import Effects

    if not durable:
        Effects.durable = property(lambda _: False)  # type: ignore[method-assign,assignment]
        DurableStore._log_update = lambda *_: None  # type: ignore[method-assign,assignment]
    told = state.parent / f"{state.name}.json"
    layout = Layout.flat(values)

    training = ob.Training(lr=0.1, batch_size=10)
    learner = server_learner(LogisticSpec(), training, sample_shape=(features(values),), classes=1)
    experiment = ob.Experiment(ob.fedasync(steps=1), learner, until=ob.Until(tasks=FOREVER))
    options = ServerOptions(clients=clients, lease=60.0)
    async with serve(experiment, state, "127.0.0.1:0", options=options, limits=limits(layout)) as server:
        asyncio.get_running_loop().add_signal_handler(15, server.leave)
        tell(told, server.port)
        await server.ended()


def features(values: int) -> int:
    """The inputs of a logistic regression with one output that has so many values: these and a bias."""
    return values - 1


def limits(layout: Layout | None) -> Limits:
    return Limits(layout=layout, messages_per_second=RATE, connections=2000)


def tell(path: Path, port: int) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(port), encoding="ascii")
    part.replace(path)


# ---- the sites' side ----


class Servers:
    """The servers' processes: all of them are started before this process opens a connection."""

    def __init__(self, directory: Path, connections: int) -> None:
        self._directory = directory
        self._processes: dict[str, int] = {}
        runs = [("tiny", 2, 1, True), ("tiny, volatile", 2, 1, False), ("many", 2, connections, True)]
        for size, values, sites, _ in SIZES:
            runs += [(f"{size} x {sites}", values, sites, True)]
            runs += [(f"{size} x {sites}, volatile", values, sites, False)]
        for name, values, clients, durable in runs:
            state = self._place(name)
            work = lambda s=state, v=values, c=clients, d=durable: serve_run(s, v, c, d)  # noqa: E731
            self._processes[name] = fork(work, state.with_suffix(".log"))
        for name in self._processes:
            self.address(name)

    def _place(self, name: str) -> Path:
        return self._directory / name.replace(", ", "-").replace(" ", "-")

    def address(self, name: str) -> str:
        """Where a server listens, once it does."""
        told = self._place(name).with_suffix(".json")
        while not told.exists():
            time.sleep(0.05)
        return f"127.0.0.1:{json.loads(told.read_text(encoding='ascii'))}"

    def used(self, name: str) -> tuple[float, float]:
        """Seconds of processor's time and MiB of memory of a server's process."""
        process = Path(f"/proc/{self._processes[name]}")
        times = (process / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
        pages = int((process / "statm").read_text(encoding="ascii").split()[1])
        ticks = int(times[11]) + int(times[12])
        return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def stop(self, name: str) -> None:
        """End a server, which is not needed any more."""
        kill(self._processes.pop(name))

    def close(self) -> None:
        """End them all."""
        for name in list(self._processes):
            self.stop(name)


@asynccontextmanager
async def site(address: str, name: str) -> AsyncIterator[ClientChannel]:
    """A link that has said hello."""
    from offbeat.net.grpc.client import connect

    link = await connect(address, SiteCredentials(name=name), limits(None))
    try:
        link.send(Register(10, 1))
        yield link
    finally:
        await link.close()


async def given(link: ClientChannel) -> TaskAssignment:
    """The next task."""
    while not isinstance(message := await link.receive(), TaskAssignment):
        pass
    return message


def warmed_up(count: int) -> int:
    """So many updates, and before them one in ten more, and one to count from."""
    return count + count // 10 + 1


async def exchanges(address: str, values: int, count: int, name: str = "a") -> list[float]:
    """When so many updates, after one in ten more, have been answered by the next task: one time more."""
    delta, times = torch.full((values,), 1e-6), []
    async with site(address, name) as link:
        task = await given(link)
        for _ in range(warmed_up(count)):
            link.send(UpdateSubmission(task.task, 1, delta, NONE))
            task = await given(link)
            times.append(time.perf_counter())
    return times[count // 10 :]


class Sites:
    """Sites in a process of their own."""

    def __init__(self, log: Path) -> None:
        self._orders, theirs = Pipe()
        self._process = fork(lambda: asyncio.run(obey(theirs)), log)

    def times(self, address: str, values: int, sites: int, count: int) -> tuple[list[list[float]], float]:
        """For each of so many sites, which work at once, what `exchanges` gives; the processor's seconds."""
        self._orders.send((address, values, sites, count))
        found: tuple[list[list[float]], float] = self._orders.recv()
        return found

    def close(self) -> None:
        """End the process."""
        kill(self._process)


async def obey(orders: "Connection[Any, Any]") -> None:
    """Do what is ordered; between two orders no link is open, so nothing else waits."""
    while True:
        address, values, sites, count = orders.recv()
        works = (exchanges(address, values, count, f"site-{i}") for i in range(sites))
        before = time.process_time()
        found = await asyncio.gather(*works)
        orders.send((found, time.process_time() - before))


def raw_times(size: int, streams: int, count: int, *, durable: bool, keeps: bool) -> list[list[float]]:
    """For each of so many streams of raw gRPC, when so many updates of `size` bytes had been answered."""
    program = [sys.executable, str(Path(__file__).with_name("raw_grpc.py"))]
    environment = {**os.environ, **(KEEPS if keeps else {})}
    with tempfile.TemporaryDirectory(prefix="offbeat-raw-grpc-") as name:
        written = ["--directory", name] if durable else []
        server = subprocess.Popen(
            [*program, "serve", *written], env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            address = f"127.0.0.1:{server.stdout.readline().strip()}"
            words = [address, str(size), str(streams), str(warmed_up(count))]
            done = subprocess.run(
                [*program, "send", *words], env=environment, stdout=subprocess.PIPE, check=True, text=True
            )
        finally:
            server.kill()
            server.wait()
    found: list[list[float]] = json.loads(done.stdout)
    return [times[count // 10 :] for times in found]


# ---- the tables ----


def round_trips(runner: asyncio.Runner, servers: Servers, directory: Path, count: int) -> Rows:
    def empty(name: str) -> list[float]:
        return passed(runner.run(exchanges(servers.address(name), 2, count)))

    yield trip("empty model", empty("tiny"))
    yield trip("nothing written", empty("tiny, volatile"))
    yield trip("raw gRPC", passed(raw_times(8, 1, count, durable=False, keeps=False)[0]))
    yield trip("one small write and its fsync", fsyncs(directory / "probe", count))


def passed(times: Sequence[float]) -> list[float]:
    """Seconds from each time to the next."""
    return [later - earlier for earlier, later in pairwise(times)]


def trip(name: str, seconds: Sequence[float]) -> Row:
    own, most = median(seconds), quantiles(seconds, n=20)[-1]
    return {"a task's round trip": name, "median": f"{1e3 * own:.2f} ms", "95 %": f"{1e3 * most:.2f} ms"}


def fsyncs(path: Path, count: int) -> list[float]:
    """Seconds of a small write and its fsync."""
    seconds = []
    with path.open("wb") as file:
        for _ in range(count):
            begun = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            seconds.append(time.perf_counter() - begun)
    return seconds


def throughput(servers: Servers, ours: Sites, repeats: int, largest: float) -> Rows:
    for size, values, sites, updates in SIZES:
        if 4e-6 * values > largest:
            continue
        for kind in ("", ", volatile"):
            name = f"{size} x {sites}{kind}"
            durable, spent = not kind, []
            rates = [
                [
                    ours_rate(servers, ours, name, values, sites, updates, spent),
                    *(
                        rate(raw_times(4 * values, sites, updates, durable=durable, keeps=keeps))
                        for keeps in (False, True)
                    ),
                ]
                for _ in range(repeats)
            ]
            found = [median(each) for each in zip(*rates, strict=True)]
            processor = " and ".join(f"{1e3 * min(each):.2f}" for each in zip(*spent, strict=True))
            yield {
                "model": size, "sites": sites, "on disk before the answer": "both" if durable else "nothing",
                "updates/s": f"{found[0]:.2f}", "raw gRPC, the same bytes": f"{found[1]:.2f}",
                "ratio": over(rates, 1), "raw gRPC, freed memory kept": f"{found[2]:.2f}",
                "its ratio": over(rates, 2), "processor, server and site, ms an update": processor,
            }  # fmt: skip
            servers.stop(name)


def ours_rate(
    servers: Servers, ours: Sites, name: str, values: int, sites: int, count: int, spent: list[list[float]]
) -> float:
    """Updates a second. To `spent` goes the processor's time for an update of the server and of a site."""
    address, before = servers.address(name), servers.used(name)[0]
    times, seconds = ours.times(address, values, sites, count)
    updates = sites * warmed_up(count)
    spent.append([(servers.used(name)[0] - before) / updates, seconds / updates])
    return rate(times)


def over(rates: Sequence[Sequence[float]], other: int) -> str:
    """The ratio of the first rate over another, taken within each repeat: median, least and greatest."""
    ratios = sorted(each[0] / each[other] for each in rates)
    return f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def rate(found: Sequence[Sequence[float]]) -> float:
    """Updates a second, while all sites or streams are at their exchanges."""
    begin, end = max(times[0] for times in found), min(times[-1] for times in found)
    if not begin < end:
        raise RuntimeError(f"of {len(found)} sites one ended before another began: give them more updates")
    return sum(begin < moment <= end for times in found for moment in times) / (end - begin)


async def many(servers: Servers, connections: int, seconds: float, every: float) -> list[Row]:
    """So many sites at once: first they only beat, as a lease of 60 s asks for, then they also work."""
    rows: list[Row] = []
    address = servers.address("many")
    before = servers.used("many")[1]
    active, over = asyncio.Event(), asyncio.Event()
    done: list[int] = []
    joined: list[str] = []

    async def one(name: str) -> None:
        with suppress(ChannelClosedError):
            async with site(address, name) as link:
                joined.append(name)
                task = await given(link)
                while not over.is_set():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(over.wait(), every if active.is_set() else 20.0)
                    link.send(Heartbeat())
                    if active.is_set() and not over.is_set():
                        link.send(UpdateSubmission(task.task, 1, torch.full((2,), 1e-6), NONE))
                        task = await given(link)
                        done.append(task.task)

    sites = []
    for number in range(connections):
        sites.append(asyncio.create_task(one(f"site-{number}")))
        if number % 20 == 19:  # not all in the same moment
            await asyncio.sleep(0.1)
    while len(joined) < connections:
        await asyncio.sleep(0.1)
    await asyncio.sleep(5.0)  # every site has its first task
    for doing in ("idle", f"a task every {every:g} s"):
        if doing != "idle":
            active.set()
            await asyncio.sleep(20.0)  # the last idle beat
        used, done_before = servers.used("many"), len(done)
        await asyncio.sleep(seconds)
        now = servers.used("many")
        core, rate = (now[0] - used[0]) / seconds, (len(done) - done_before) / seconds
        rows.append({
            "sites": connections, "doing": doing, "server's memory": f"{before:.0f} → {now[1]:.0f} MiB",
            "one core, used": f"{core:.1%}", "updates/s": f"{rate:.1f}",
        })  # fmt: skip
    over.set()
    await asyncio.wait(sites, timeout=30)
    return rows


def round_trip(
    tasks: int = 500, repeats: int = 5, largest: float = 1e3, connections: int = 500, seconds: float = 20.0,
    every: float = 10.0,
) -> Rows:  # fmt: skip
    """Measure a server on loopback.

    tasks: round trips to time, at least 2
    repeats: of the throughput; 0: leave it out
    largest: MB of the largest model in it
    connections: 0: leave many sites out
    seconds: to watch many sites for
    every: seconds between an active site's tasks
    """
    if tasks < 2:
        sys.exit("--tasks must be at least 2: quantiles need two round trips")
    leave_when_told()
    with tempfile.TemporaryDirectory(prefix="offbeat-round-trip-") as name, asyncio.Runner() as runner:
        directory = Path(name)
        ours = Sites(directory / "sites.log")
        servers = Servers(directory, max(1, connections))
        try:
            yield from round_trips(runner, servers, directory, tasks)
            if repeats:
                yield from throughput(servers, ours, repeats, largest)
            if connections:
                yield from runner.run(many(servers, connections, seconds, every))
        finally:
            ours.close()
            servers.close()


if __name__ == "__main__":
    main(round_trip)
