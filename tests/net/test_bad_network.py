"""A server whose clock jumps, links on which nothing arrives any more, and sites that do not read."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

import offbeat as ob
from offbeat.models.specs import LogisticSpec
from offbeat.net import join
from offbeat.net.clock import Clock
from offbeat.net.messages import FromServer, FromSite, ModelRequest, Register
from offbeat.net.transport import ChannelClosedError, CloseReason
from offbeat.net.wire.connection import Connection
from offbeat.net.wire.limits import Limits
from offbeat.net.wire.rate_limit import MemoryBudget
from offbeat.net.wire.reader import MessageReader
from offbeat.net.wire.unfinished import UnfinishedBodies
from offbeat.net.wire.writer import MessageWriter
from offbeat.sim.replay import replay
from offbeat.testing.network import MemoryNetwork
from tests.net.support import Shares, serve, shares_of_digits, terms_of

pytestmark = pytest.mark.usefixtures("here")

TRAINING = ob.Training(lr=0.1, batch_size=20)
SITES, TASKS = 4, 40
Connect = Callable[[], Awaitable[Any]]


@pytest.fixture(scope="module")
def digits() -> Shares:
    return shares_of_digits(SITES, samples=200, test_samples=50)


async def federation(
    digits: Shares,
    directory: Path,
    network: MemoryNetwork,
    *,
    lease: float,
    clock: Clock | None = None,
    connect: Callable[[int], Connect] | None = None,
    min_step_seconds: float = 0.0,
    beside: Callable[[], Awaitable[None]] | None = None,
) -> ob.RunRecord:
    """A run of FedAsync to its end; its record."""
    data, test = digits
    algorithm = ob.fedasync(steps=2)
    terms = terms_of(clients=SITES, lease=lease, until=ob.Until(tasks=TASKS))
    server = asyncio.create_task(
        serve(
            algorithm, LogisticSpec(), TRAINING, directory, network.listen,
            options=terms, test=test, seed=3, clock=clock, linger=2.0,
        )
    )  # fmt: skip
    way = connect or (lambda i: network.connect(f"site-{i}"))
    sites = [
        asyncio.create_task(join(way(i), d, min_step_seconds=min_step_seconds)) for i, d in enumerate(data)
    ]
    others = [asyncio.create_task(beside())] if beside is not None else []
    try:
        assert await asyncio.wait_for(server, 300) == f"reached {TASKS} client tasks"
    finally:
        for task in (server, *sites, *others):
            task.cancel()
        await asyncio.gather(server, *sites, *others, return_exceptions=True)
    record = ob.read_run(directory)
    assert record.status == "finished"
    assert replay(record, algorithm).difference is None
    arrived = [row.task for row in record.rows() if row.name == "arrived"]
    assert len(arrived) == len(set(arrived)) == TASKS
    return record


class Jumpy:
    """A clock that is set back and forth, now and then."""

    def __init__(self, rng: Random, far: float) -> None:
        self._rng, self._far, self._off = rng, far, 0.0
        self.jumps = 0

    def now(self) -> float:
        """Seconds since some moment, as somebody has set them."""
        if self._rng.random() < 0.2:
            self._off = self._rng.uniform(-self._far, self._far)
            self.jumps += 1
        return time.monotonic() + self._off

    async def sleep(self, seconds: float) -> None:
        """Return soon, or after so many seconds."""
        await asyncio.sleep(min(seconds, 0.05))


@pytest.mark.parametrize("seed", range(3))
def test_a_clock_that_jumps_ends_no_lease_and_never_goes_back(seed: int, digits: Any, tmp_path: Path) -> None:
    """By hours, while a lease is a minute."""
    clock = Jumpy(Random(seed), 10_000.0)
    record = asyncio.run(federation(digits, tmp_path / "run", MemoryNetwork(), lease=60.0, clock=clock))
    rows = list(record.rows())
    assert clock.jumps > 3
    assert [row for row in rows if row.name in ("left", "lost")] == []
    assert all(a.t <= b.t for a, b in pairwise(rows))


class HalfOpen:
    """A site's link on which, after some messages, nothing passes any more, and nobody is told."""

    def __init__(self, link: Any, messages: int) -> None:
        self._link, self._left = link, messages
        self._closed = asyncio.Event()

    @property
    def took(self) -> float:
        """Seconds in which the tensors of the last message came."""
        return float(self._link.took)

    def _counted(self) -> bool:
        self._left -= 1
        return self._left >= 0

    def send(self, message: Any) -> None:
        """Send it, or seem to."""
        if self._counted():
            self._link.send(message)

    async def receive(self) -> Any:
        """What comes, if anything does."""
        receiving = asyncio.create_task(self._link.receive())
        closing = asyncio.create_task(self._closed.wait())
        try:
            await asyncio.wait({receiving, closing}, return_when=asyncio.FIRST_COMPLETED)
            if receiving.done() and (receiving.exception() is not None or self._counted()):
                return receiving.result()
            await closing
            raise ChannelClosedError("closed here")
        finally:
            for task in (receiving, closing):
                task.cancel()
            await asyncio.gather(receiving, closing, return_exceptions=True)

    async def close(self, reason: str = "") -> None:
        """End this side; the other hears nothing."""
        self._closed.set()


@pytest.mark.thorough
def test_links_that_go_dead_in_silence_are_left_by_both_sides(digits: Any, tmp_path: Path) -> None:
    network, rng, attempts = MemoryNetwork(), Random(1), [0] * SITES

    def connect(i: int) -> Connect:
        async def half_open() -> Any:
            link = await network.connect(f"site-{i}")()
            attempts[i] += 1
            dies = i > 0 and (attempts[i] == 1 or rng.random() < 0.3)
            return HalfOpen(link, rng.randrange(3, 12)) if dies else link

        return half_open

    record = asyncio.run(
        federation(digits, tmp_path / "run", network, lease=0.6, connect=connect, min_step_seconds=0.1)
    )
    left = [row.data for row in record.rows() if row.name == "left"]
    assert all(count > 1 for count in attempts[1:]), "a site has not come back"
    assert {(data or {})["reason"] for data in left} <= {"silent for 0.6 s"}


class Deaf:
    """The stream of a site that asks and asks, and reads no answer."""

    def __init__(self) -> None:
        self._writer = MessageWriter()
        self._writer.put(Register(10, 1))

    async def read(self) -> bytes:
        """The next question."""
        await asyncio.sleep(0.001)
        self._writer.put(ModelRequest(0, 1))
        return self._writer.frame()

    async def write(self, frame: bytes) -> None:
        """Wait for ever: nobody reads."""
        await asyncio.Event().wait()


def test_a_site_that_does_not_read_is_cut_off_and_hinders_nobody(digits: Any, tmp_path: Path) -> None:
    network, ends = MemoryNetwork(), []
    limits = Limits(queue=5, messages_per_second=1e6)

    async def beside() -> None:
        while True:
            if network.on_channel is not None:
                reader: MessageReader[FromSite] = MessageReader("site", limits)
                deaf: Connection[FromServer, FromSite] = Connection(
                    "deaf", Deaf(), reader, limits, MemoryBudget(limits.memory), UnfinishedBodies()
                )
                try:
                    await network.on_channel(deaf)
                finally:
                    deaf.abort(CloseReason("the test is over"))
                    ends.append((await deaf.ended()).reason)
            await asyncio.sleep(0.01)

    asyncio.run(
        federation(digits, tmp_path / "run", network, lease=20.0, beside=beside, min_step_seconds=0.02)
    )
    assert "the peer reads too slowly" in ends
