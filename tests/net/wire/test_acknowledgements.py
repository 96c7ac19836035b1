"""A body is acknowledged while it comes, and a sender has only so much of it under way."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
import torch

from offbeat.net.messages import Heartbeat, UpdateSubmission
from offbeat.net.wire import connection as module
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.connection import Connection
from offbeat.net.wire.limits import LEAST_CHUNK, Limits
from offbeat.net.wire.rate_limit import MemoryBudget
from offbeat.net.wire.reader import MessageReader
from offbeat.net.wire.unfinished import UnfinishedBodies
from offbeat.net.wire.writer import LEAST_WINDOW, MOST_WINDOW, MessageWriter

NONE = torch.zeros(0, dtype=torch.int64)


class Pipe:
    """One end of a stream in memory."""

    def __init__(self, out: asyncio.Queue[bytes], into: asyncio.Queue[bytes], frames: list[pb.Frame]) -> None:
        self._out, self._into, self._frames = out, into, frames

    async def read(self) -> bytes:
        return await self._into.get()

    async def write(self, frame: bytes) -> None:
        self._frames.append(pb.Frame.FromString(frame))
        await self._out.put(frame)


def end(pipe: Pipe, peer: Any, limits: Limits) -> Connection[Any, Any]:
    reader: MessageReader[Any] = MessageReader(peer, limits, registered=True)
    return Connection("peer", pipe, reader, limits, MemoryBudget(limits.memory), UnfinishedBodies())


async def exchange(values: int, count: int) -> tuple[list[pb.Frame], list[pb.Frame], list[Any]]:
    """Send updates from a site to a server: the frames of both, and what came."""
    up: asyncio.Queue[bytes] = asyncio.Queue(1)
    down: asyncio.Queue[bytes] = asyncio.Queue(1)
    sent, answered, limits = list[pb.Frame](), list[pb.Frame](), Limits(messages_per_second=1e6)
    site = end(Pipe(up, down, sent), "server", limits)
    server = end(Pipe(down, up, answered), "site", limits)
    came = []
    for task in range(count):
        site.send(UpdateSubmission(task, 1, torch.full((values,), float(task)), NONE))
        came.append(await server.receive())
    for each in (site, server):
        await each.close()
    return sent, answered, came


def test_what_comes_is_acknowledged_by_its_bytes_and_on_a_slow_line_by_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def steps(every: float) -> tuple[list[int], list[int]]:
        """The sizes of chunks, and the bytes from one acknowledgement of a body to the next."""
        monkeypatch.setattr(module, "ACKNOWLEDGE_EVERY", every)
        sent, answered, came = asyncio.run(exchange(2_000_000, 3))
        assert [float(update.delta[-1]) for update in came] == [0.0, 1.0, 2.0]
        told = [0, *(frame.acknowledged for frame in answered if frame.HasField("acknowledged"))]
        between = [after - before for before, after in pairwise(told) if after > before]
        return [len(frame.chunk.data) for frame in sent if frame.HasField("chunk")], between

    chunks, by_bytes = steps(1e9)
    assert chunks[0] == LEAST_CHUNK
    # The more a connection has carried, the more an acknowledgement is for.
    assert by_bytes[0] == LEAST_CHUNK
    assert by_bytes[-1] >= 6 * LEAST_CHUNK
    # Time asks for one with each chunk.
    assert steps(0.0)[1][-1] < 6 * LEAST_CHUNK


def test_a_sender_waits_for_acknowledgements_and_small_messages_pass() -> None:
    writer = MessageWriter()
    writer.put(UpdateSubmission(1, 1, torch.zeros(1_000_000), NONE))
    sent = 0
    while writer.ready:
        sent += len(pb.Frame.FromString(writer.frame()).chunk.data)
        writer.written()
    assert sent == LEAST_WINDOW
    assert not writer.empty
    writer.put(Heartbeat())
    assert writer.ready
    assert pb.Frame.FromString(writer.frame()).envelopes[0].HasField("heartbeat")
    assert not writer.ready
    writer.acknowledged(LEAST_CHUNK)
    assert writer.ready
    # A peer cannot acknowledge what was not sent.
    writer.acknowledged(1 << 40)
    assert writer.transfer is not None
    assert writer.transfer.arrived == sent


def test_an_acknowledgement_that_comes_late_is_not_of_the_next_body() -> None:
    writer = MessageWriter()
    for task in (1, 2):
        writer.put(UpdateSubmission(task, 1, torch.zeros(100_000), NONE))

    def send() -> None:
        while writer.ready:
            writer.frame()
            writer.written()

    def arrived() -> tuple[str, int]:
        assert writer.transfer is not None
        return writer.transfer.what, writer.transfer.arrived

    send()
    for chunks in (2, 4, 6):
        writer.acknowledged(chunks * LEAST_CHUNK)
        send()
    writer.acknowledged(400_000)
    assert arrived() == ("the update of task 2", 0)
    writer.acknowledged(400_000 + LEAST_CHUNK)
    assert arrived() == ("the update of task 2", LEAST_CHUNK)


def test_a_small_body_its_message_and_an_acknowledgement_are_one_frame() -> None:
    def sent() -> list[pb.Frame]:
        """The frames of an update whose peer acknowledges all of it."""
        writer.put(UpdateSubmission(1, 1, torch.zeros(250_000), NONE))
        found = []
        while not writer.empty:
            found.append(pb.Frame.FromString(writer.frame()))
            writer.written()
            writer.acknowledged(1 << 40)
        return found

    writer = MessageWriter()
    first = sent()
    assert first[0].envelopes
    assert not first[0].HasField("chunk")
    # It is small beside what the connection has carried.
    for _ in range(40):
        sent()
    writer.acknowledge(LEAST_CHUNK - 1, due=False)
    assert writer.empty
    (frame,) = sent()
    assert [len(frame.chunk.data), len(frame.envelopes)] == [1_000_000, 1]
    assert not frame.HasField("acknowledged")
    writer.acknowledge(LEAST_CHUNK, due=False)
    assert writer.empty
    (frame,) = sent()
    assert frame.acknowledged == writer.answered == LEAST_CHUNK
    assert writer.empty


def test_a_window_has_a_least_and_a_most() -> None:
    writer, most, acknowledged, under_way = MessageWriter(), 0, 0, 0
    for task in range(12):
        writer.put(UpdateSubmission(task, 1, torch.zeros(20 << 20), NONE))
        while not writer.empty:
            if writer.ready:
                under_way += len(pb.Frame.FromString(writer.frame()).chunk.data)
                writer.written()
                most = max(most, under_way)
            else:
                acknowledged += under_way
                writer.acknowledged(acknowledged)
                under_way = 0
    assert MOST_WINDOW - (1 << 20) < most <= MOST_WINDOW


def test_a_peer_that_acknowledges_nothing_is_ended_although_it_takes_heartbeats() -> None:
    async def story() -> str:
        frames, limits = list[pb.Frame](), Limits(stall=0.3, messages_per_second=1e6)
        nothing: asyncio.Queue[bytes] = asyncio.Queue()
        site = end(Pipe(asyncio.Queue(), nothing, frames), "server", limits)
        site.send(UpdateSubmission(1, 1, torch.zeros(1_000_000), NONE))

        async def beats() -> None:
            while True:
                site.send(Heartbeat())
                await asyncio.sleep(0.05)

        beating = asyncio.create_task(beats())
        ending = await site.ended()
        beating.cancel()
        assert sum(len(frame.chunk.data) for frame in frames) == LEAST_WINDOW
        return ending.reason

    assert asyncio.run(story()) == "the peer has acknowledged nothing of a body for 0.6 s"
