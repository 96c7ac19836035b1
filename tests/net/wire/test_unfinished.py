"""Bodies whose connections end go on from where they were; nobody else gets them, and they are bounded."""

import asyncio
import os
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64

from offbeat.core.layout import Entry, Layout
from offbeat.core.model import Model
from offbeat.net.messages import TaskAssignment, UpdateSubmission
from offbeat.net.transport import CloseReason, ProtocolError
from offbeat.net.wire import connection as connection_module
from offbeat.net.wire import unfinished
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire import writer as writer_module
from offbeat.net.wire.connection import Connection
from offbeat.net.wire.limits import LEAST_CHUNK, Limits
from offbeat.net.wire.rate_limit import MemoryBudget
from offbeat.net.wire.reader import MessageReader
from offbeat.net.wire.serialization import serialize
from offbeat.net.wire.unfinished import IncomingBody, UnfinishedBodies
from offbeat.net.wire.writer import MessageWriter
from tests.sampling import examples

VALUES = 300_000
LAYOUT = Layout((Entry("w", (VALUES,), "float32", "parameter"), Entry("n", (9,), "int64", "integer")))


def update(seed: int = 0, task: int = 7) -> UpdateSubmission:
    values = torch.randn(VALUES, generator=torch.Generator().manual_seed(seed))
    return UpdateSubmission(task, 5, values, torch.arange(9))


def assignment(seed: int = 0) -> TaskAssignment:
    return TaskAssignment(7, 0, 5, 0, Model(LAYOUT, update(seed).delta, torch.arange(9)))  # type: ignore[arg-type]


class Link:
    """A link that may break after some bytes of a body; what comes is read as a connection reads it."""

    def __init__(self, here: UnfinishedBodies, peer: str = "north") -> None:
        self.here, self.peer, self.sent = here, peer, 0

    def carry(self, message: Any, most: int | None = None, sender: str = "site") -> Any:
        """Send a message over a new connection; None where it breaks after `most` bytes."""
        writer, carried = MessageWriter(), 0
        reader: MessageReader[Any] = MessageReader(sender, Limits(), registered=True)  # type: ignore[arg-type]
        writer.peer_has(self.here.told(self.peer))
        writer.put(message)
        while not writer.empty:
            frame = writer.frame()
            carried += len(frame)
            if most is not None and carried > most:
                break
            self.sent += len(frame)
            read = reader.feed(frame)
            if reader.resumes:
                reader.resume(lambda body, told: self.here.resume(self.peer, body, told))
            elif read.announced is not None:
                self.here.supersede(self.peer, read.announced.kind)
            if read.whole is not None:
                self.here.forget(self.peer, read.whole)
            if read.messages:
                return read.messages[0][0]
        if (body := reader.drop()) is not None and body.received:
            self.here.keep(self.peer, body)
        return None


@pytest.fixture(params=["files", "memory"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> UnfinishedBodies:
    return UnfinishedBodies(tmp_path / "transfers" if request.param == "files" else None)


@examples(25)
@given(cuts=st.lists(st.integers(70_000, 1_300_000), max_size=12), files=st.booleans(), down=st.booleans())
def test_a_body_arrives_through_any_cuts_and_little_is_sent_twice(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], files: bool, down: bool
) -> None:
    directory = tmp_path_factory.mktemp("state")
    link = Link(UnfinishedBodies(directory if files else None))
    message, sender = (assignment(), "server") if down else (update(), "site")
    came = None
    for most in (*cuts, None):
        came = link.carry(message, most, sender)
        if came is not None:
            break
    delta = came.model.values if down else came.delta
    integers = came.model.integers if down else came.integers
    assert torch.equal(delta, update().delta)  # type: ignore[arg-type]
    assert torch.equal(integers, torch.arange(9))
    # What a break costs is what was announced again: a few hundred bytes.
    assert link.sent <= 4 * VALUES + 72 + (len(cuts) + 1) * 2000
    assert not list(directory.iterdir())


def test_another_process_goes_on_with_the_files(tmp_path: Path) -> None:
    for k in range(4):
        assert Link(UnfinishedBodies(tmp_path)).carry(update(), 300_000) is None, k
    link = Link(UnfinishedBodies(tmp_path))
    assert link.carry(update()) is not None
    assert link.sent < 4 * VALUES - 3 * LEAST_CHUNK


def test_a_file_that_lost_its_end_or_was_changed_costs_what_is_missing(tmp_path: Path) -> None:
    for spoil in (
        lambda data: data[:-100_000],
        lambda data: data[:-5] + b"spoil",
        lambda _: b"",
        lambda _: b"[1",
    ):
        assert Link(UnfinishedBodies(tmp_path)).carry(update(), 400_000) is None
        (file,) = tmp_path.iterdir()
        file.write_bytes(spoil(file.read_bytes()))
        assert torch.equal(Link(UnfinishedBodies(tmp_path)).carry(update()).delta, update().delta)  # type: ignore[arg-type]
        for left in tmp_path.iterdir():
            left.unlink()


def test_a_changed_update_of_the_same_task_begins_anew(here: UnfinishedBodies) -> None:
    link = Link(here)
    assert link.carry(update(0), 900_000) is None
    assert here.has("north")
    came = link.carry(update(1))
    assert torch.equal(came.delta, update(1).delta)  # type: ignore[arg-type]
    assert link.sent > 4 * VALUES + 700_000
    # The other one is not kept any more.
    assert not here.has("north")


def test_a_body_that_another_peer_has_begun_is_not_told(here: UnfinishedBodies) -> None:
    assert Link(here, "north").carry(update(), 900_000) is None
    assert here.told("south") == []
    assert Link(here, "south").carry(update()) is not None
    assert len(here.told("north")) == 1


def test_a_peer_has_two_unfinished_bodies_at_most(here: UnfinishedBodies) -> None:
    for seed in range(5):
        body = incoming(seed)
        body.kind = f"kind {seed}"
        here.keep("north", body)
    assert [told.sum for told in here.told("north")] == [
        incoming(seed).checksum.intdigest() for seed in (3, 4)
    ]


def test_the_oldest_go_where_there_are_too_many_bytes_and_all_go_with_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(unfinished.time, "time", lambda: now[0])
    for directory in (None, tmp_path):
        here = UnfinishedBodies(directory, most=5 * 100_000, age=60.0)
        for k in range(9):
            here.keep(f"site-{k}", incoming(k))
            now[0] += 1.0
        assert [k for k in range(9) if here.told(f"site-{k}")] == [4, 5, 6, 7, 8]
        now[0] += 58.0
        assert [k for k in range(9) if here.told(f"site-{k}")] == [7, 8]
        now[0] += 60.0
        assert not any(here.told(f"site-{k}") or here.has(f"site-{k}") for k in range(9))
    assert not list(tmp_path.iterdir())


def incoming(seed: int, size: int = 100_000) -> IncomingBody:
    """A body of 400,000 bytes of which some have come."""
    data = memoryview(torch.randn(size, generator=torch.Generator().manual_seed(seed)).numpy().tobytes())
    body = IncomingBody("update_submission", ((4, 1, len(data)),), [memoryview(bytearray(len(data)))])
    body.add(data[:100_000])
    body.checksum.update(data[:100_000])
    return body


@pytest.mark.parametrize(
    ("offset", "sum_of", "why"),
    [
        (100_000, 99_999, "behind 100000 bytes, which are not here"),
        (99_999, 99_999, "behind 99999 bytes, which are not here"),
        (100_001, 100_000, "behind 100001 bytes, which are not here"),
        (400_000, 100_000, "behind its end"),
        (1 << 63, 100_000, "behind its end"),
    ],
)
def test_a_peer_that_lies_about_an_offset_is_refused(
    here: UnfinishedBodies, offset: int, sum_of: int, why: str
) -> None:
    body = incoming(0)
    here.keep("north", body)
    data = bytes(body.memory[0])
    told = pb.Body(
        parts=[
            pb.Part(kind=pb.Part.DELTA, type=pb.Part.FLOAT32, bytes=400_000),
            pb.Part(kind=pb.Part.INTEGERS, type=pb.Part.INT64, bytes=0),
        ],
        offset=offset, sum=xxh3_64(data[:sum_of]).intdigest(),
    )  # fmt: skip
    reader: MessageReader[Any] = MessageReader("site", Limits(), registered=True)
    envelope = pb.Envelope(update_submission=pb.UpdateSubmission(), body=told)

    def go_on() -> None:
        reader.feed(pb.Frame(envelopes=[envelope]).SerializeToString())
        reader.resume(lambda its, said: here.resume("north", its, said))

    with pytest.raises(ProtocolError, match=why):
        go_on()
    assert len(here.told("north")) == 1


def test_chunks_do_not_come_before_what_goes_before_them_is_filled_in() -> None:
    reader: MessageReader[Any] = MessageReader("site", Limits(), registered=True)
    told = pb.Body(parts=[pb.Part(kind=pb.Part.DELTA, type=pb.Part.FLOAT32, bytes=400_000),
                          pb.Part(kind=pb.Part.INTEGERS, type=pb.Part.INT64)], offset=8)  # fmt: skip
    envelope = pb.Envelope(update_submission=pb.UpdateSubmission(), body=told)
    chunk = pb.Chunk(data=bytes(LEAST_CHUNK), sum=xxh3_64(bytes(LEAST_CHUNK)).intdigest())
    with pytest.raises(ProtocolError, match="no message has announced"):
        reader.feed(pb.Frame(envelopes=[envelope], chunk=chunk).SerializeToString())


def test_a_peer_that_lies_about_what_it_has_gets_the_whole() -> None:
    sent = {}
    for offset, checksum in ((0, 0), (1 << 20, 5), (1 << 62, 5), (4 * VALUES + 72, 0)):
        writer = MessageWriter()
        parts = MessageWriter()
        parts.put(update())
        body = pb.Frame.FromString(parts.frame()).envelopes[0].body
        writer.peer_has([pb.Body(parts=body.parts, offset=offset, sum=checksum)])
        writer.put(update())
        frames = []
        while not writer.empty:
            frames.append(writer.frame())
        sent[offset] = sum(map(len, frames))
    assert len(set(sent.values())) == 1


def test_a_frame_tells_of_two_unfinished_bodies_at_most() -> None:
    told = pb.Body(offset=1)
    envelope = pb.Envelope(register=pb.Register())
    MessageReader[Any]("site", Limits()).feed(
        pb.Frame(envelopes=[envelope], unfinished=[told] * 2).SerializeToString()
    )
    with pytest.raises(ProtocolError, match="more than 2 unfinished bodies"):
        MessageReader[Any]("site", Limits()).feed(
            pb.Frame(envelopes=[envelope], unfinished=[told] * 3).SerializeToString()
        )


def test_a_body_is_compared_with_what_the_peer_has_for_the_first_bodies_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[int] = []
    real = writer_module._resumed
    monkeypatch.setattr(writer_module, "_resumed", lambda *given: compared.append(1) or real(*given))
    writer = MessageWriter()
    writer.peer_has([pb.Body(offset=5), pb.Body(offset=6)])
    for task in range(5):
        writer.put(update(task=task))
    while not writer.empty:
        writer.frame()
    assert len(compared) == 2


def test_a_directory_that_cannot_be_written_costs_only_the_resuming(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "transfers").write_text("a file")
    link = Link(UnfinishedBodies(tmp_path / "transfers"))
    assert link.carry(update(), 900_000) is None
    assert "cannot be kept" in caplog.text
    assert link.carry(update()) is not None


def test_files_are_their_owners(tmp_path: Path) -> None:
    here = UnfinishedBodies(tmp_path / "transfers")
    here.keep("north", incoming(0))
    (file,) = (tmp_path / "transfers").iterdir()
    assert [path.stat().st_mode & 0o777 for path in (file.parent, file)] == [0o700, 0o600]


def test_a_transfer_that_takes_long_is_written_while_it_comes(tmp_path: Path) -> None:
    here, body = UnfinishedBodies(tmp_path), incoming(0)
    here.save("north", body)
    data = memoryview(bytes(50_000))
    body.add(data)
    body.checksum.update(data)
    here.save("north", body)
    (told,) = UnfinishedBodies(tmp_path).told("north")
    assert (told.offset, told.sum) == (150_000, body.checksum.intdigest())
    assert body.saved == 150_000


def test_what_another_connection_has_written_behind_is_written_over(tmp_path: Path) -> None:
    here, data = UnfinishedBodies(tmp_path), memoryview(bytes(range(250)) * 200)
    here.keep("north", incoming(0))
    (told,) = here.told("north")
    for _ in range(2):
        body = IncomingBody("update_submission", incoming(0).parts, [memoryview(bytearray(1_200_072))])
        here.resume("north", body, told)
        body.checksum.update(data)
        body.add(data)
        here.save("north", body)
    (found,) = UnfinishedBodies(tmp_path).told("north")
    assert (found.offset, found.sum) == (150_000, body.checksum.intdigest())


@pytest.mark.parametrize("kind", ["", "checksum"])
def test_a_connection_that_ends_while_a_body_is_written_leaves_one_file_or_none(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that writes goes on when its task is cancelled."""
    monkeypatch.setattr(connection_module, "SAVE_EVERY", 0.0)
    writing, go_on, sync, calls = Event(), Event(), os.fsync, count()

    def slow(number: int) -> None:
        # The first two calls are for the announcement and for the first chunk.
        if next(calls) == 2:
            writing.set()
            go_on.wait()
        sync(number)

    monkeypatch.setattr(os, "fsync", slow)
    here, writer = UnfinishedBodies(tmp_path), MessageWriter()
    writer.put(update())

    class Stream:
        async def read(self) -> bytes:
            if not writer.ready:
                await asyncio.Event().wait()
            return writer.frame()

        async def write(self, frame: bytes) -> None:
            pass

    async def story() -> None:
        reader: MessageReader[Any] = MessageReader("site", Limits(), registered=True)
        connection: Connection[Any, Any] = Connection(
            "north", Stream(), reader, Limits(), MemoryBudget(1 << 30), here
        )
        await asyncio.to_thread(writing.wait)
        connection.abort(CloseReason("lost", kind))
        ended = asyncio.create_task(connection.ended())
        for _ in range(5):
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.2, go_on.set)
        await ended

    asyncio.run(story())
    told = here.told("north")
    assert len(list(tmp_path.iterdir())) == len(told) == (kind == "")
    if told:
        whole = serialize(update()).body[0]
        assert told[0].sum == xxh3_64(whole[: told[0].offset]).intdigest()
