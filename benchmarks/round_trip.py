"""The round trip of a task that is no work: from a site's update to its next task, over loopback.

    python benchmarks/round_trip.py [--tasks 1000] [--features 1] [--sites 1] [--directory DIR]

A whole server with its state directory (every update is durable before it is answered) and sites that answer
a task at once, over gRPC and over a queue in memory; beside them what the disk takes for one fsync and for
one transaction of SQLite. Give a `--directory` on the disk that you want to know about.
"""

import argparse
import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

import offbeat as ob
from offbeat.core.model import Model
from offbeat.models.registry import LogisticSpec, build
from offbeat.net import Terms, serve
from offbeat.net.credentials import ServerCredentials, SiteCredentials
from offbeat.net.grpc_server import listen
from offbeat.net.grpc_site import connect
from offbeat.net.limits import Limits
from offbeat.net.link import LinkClosedError, OnLink
from offbeat.net.messages import Assign, Bye, Hello, Over, Result

Connect = Callable[[str], Awaitable[Any]]
FREE = Limits(messages_per_second=1e6)
NONE = torch.zeros(0, dtype=torch.int64)


class QueueLink:
    """One end of a link in memory."""

    def __init__(self, out: "asyncio.Queue[Any]", into: "asyncio.Queue[Any]", site: str) -> None:
        self._out, self._in, self.site = out, into, site

    async def send(self, message: Any) -> None:
        self._out.put_nowait(message)

    async def receive(self) -> Any:
        if (message := await self._in.get()) is None:
            raise LinkClosedError("closed")
        return message

    async def close(self, reason: str = "") -> None:
        self._out.put_nowait(None)
        self._in.put_nowait(None)


class Memory:
    """A door without a network."""

    def __init__(self) -> None:
        self._on_link: OnLink | None = None
        self._open: list[Any] = []

    async def listen(self, on_link: OnLink) -> "Memory":
        self._on_link = on_link
        return self

    async def connect(self, site: str) -> QueueLink:
        while self._on_link is None:
            await asyncio.sleep(0.01)
        up: asyncio.Queue[Any] = asyncio.Queue()
        down: asyncio.Queue[Any] = asyncio.Queue()
        self._open.append(asyncio.create_task(self._on_link(QueueLink(down, up, site))))  # type: ignore[arg-type]
        return QueueLink(up, down, site)

    async def close(self) -> None:
        await asyncio.gather(*self._open)


class Grpc:
    """The real door, on loopback without TLS."""

    def __init__(self, layout: Any) -> None:
        self._limits, self._port = Limits(layout=layout, messages_per_second=1e6), 0

    async def listen(self, on_link: OnLink) -> Any:
        listener = await listen("127.0.0.1:0", ServerCredentials(), self._limits, on_link)
        self._port = listener.port
        return listener

    async def connect(self, site: str) -> Any:
        while not self._port:
            await asyncio.sleep(0.01)
        return await connect(f"127.0.0.1:{self._port}", SiteCredentials(name=site), FREE)


async def answer(connect: Connect, name: str, delta: torch.Tensor) -> list[float]:
    """A site that answers each task at once; returns the seconds to the next one."""
    link, took, sent = await connect(name), [], 0.0
    await link.send(Hello(10, 1))
    with suppress(LinkClosedError):
        while not isinstance(message := await link.receive(), Over):
            if isinstance(message, Assign):
                if sent:
                    took.append(time.perf_counter() - sent)
                sent = time.perf_counter()
                await link.send(Result(message.task, message.steps, delta, NONE))
        await link.send(Bye("the run is over"))
    await link.close()
    return took


async def round_trips(door: Memory | Grpc, place: Path, tasks: int, sites: int, features: int) -> list[float]:
    """Seconds of each round trip."""
    spec, shape = LogisticSpec(), (features,)
    values = Model.of(build(spec, shape, 2)).layout.values
    served = asyncio.create_task(
        serve(
            ob.fedasync(steps=1), spec, ob.Training(lr=0.1), place, door.listen,
            terms=Terms(clients=sites, tasks=tasks), sample_shape=shape, classes=2,
        )
    )  # fmt: skip
    found = await asyncio.gather(
        *(answer(door.connect, f"site-{i}", torch.zeros(values)) for i in range(sites))
    )
    await served
    return [seconds for took in found for seconds in took[10:]]


def fsync(place: Path, count: int) -> list[float]:
    """Seconds of writing a block of a file to disk."""
    took = []
    with (place / "block").open("wb") as file:
        for _ in range(count):
            start = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - start)
    return took


def transactions(place: Path, count: int) -> list[float]:
    """Seconds of a transaction of one row."""
    database, took = sqlite3.connect(place / "floor.db"), []
    database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t(x)")
    for _ in range(count):
        start = time.perf_counter()
        with database:
            database.execute("INSERT INTO t VALUES (1)")
        took.append(time.perf_counter() - start)
    database.close()
    return took


def line(name: str, took: list[float]) -> str:
    return f"| {name} | {1e3 * median(took):.2f} ms | {1e3 * quantiles(took, n=20)[-1]:.2f} ms |"


def main() -> None:
    parser = argparse.ArgumentParser(description="the round trip of a task that is no work")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--features", type=int, default=1, help="of the model, which has 2 values more each")
    parser.add_argument("--sites", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=None)
    chosen = parser.parse_args()
    layout = Model.of(build(LogisticSpec(), (chosen.features,), 2)).layout
    with tempfile.TemporaryDirectory(dir=chosen.directory) as name:
        place = Path(name)
        print("| | median | 95 % within |\n|---|---|---|")
        print(line("one fsync", fsync(place, 200)), flush=True)
        print(line("one transaction", transactions(place, 200)), flush=True)
        for label, door in (("in memory", Memory()), ("gRPC", Grpc(layout))):
            took = asyncio.run(round_trips(door, place / label, chosen.tasks, chosen.sites, chosen.features))
            print(line(f"round trip, {label}", took), flush=True)


if __name__ == "__main__":
    main()
