"""What a receiver refuses, before it takes memory, and that no bytes make it do anything but refuse."""

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace

from offbeat.core.layout import Entry, Layout
from offbeat.net.messages import FromSite, Heartbeat, Register, TaskFailed, UpdateReady, UpdateSubmission
from offbeat.net.transport import ProtocolError
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.limits import LEAST_CHUNK, Limits
from offbeat.net.wire.reader import MessageReader, ReadResult
from offbeat.net.wire.serialization import serialize
from offbeat.net.wire.writer import frames
from tests.net.announced_body import announced_body

LAYOUT = Layout((*Layout.flat(100_000).entries, Entry("n", (), "int64", "integer")))
LIMITS = Limits(layout=LAYOUT)
HELLO = Register(10, 1, (5, 5), None, "run")


def result(values: int = 100_000, integers: int = 1, shared: int | None = None) -> UpdateSubmission:
    extra = None if shared is None else torch.zeros(shared)
    return UpdateSubmission(
        7, 5, torch.randn(values), torch.ones(integers, dtype=torch.int64), {"loss": 1.0}, 0.1, extra
    )


def framed(message: FromSite, size: int = 64 << 10) -> list[bytes]:
    outgoing = serialize(message)
    return [
        frame for frame, _ in frames(pb.Frame(envelopes=[outgoing.envelope]), outgoing.body, lambda _: size)
    ]


def announced(read: ReadResult[FromSite]) -> int:
    """The bytes of the body that a frame announces."""
    return 0 if read.announced is None else read.announced.size


def whole(envelopes: list[pb.Envelope]) -> bytes:
    return pb.Frame(envelopes=envelopes).SerializeToString()


def greeted(limits: Limits = LIMITS) -> MessageReader[FromSite]:
    receiver: MessageReader[FromSite] = MessageReader("site", limits)
    receiver.feed(framed(HELLO)[0])
    return receiver


def refusal(receiver: MessageReader[FromSite], *said: bytes) -> ProtocolError:
    *before, last = said
    for frame in before:
        receiver.feed(frame)
    with pytest.raises(ProtocolError) as caught:
        receiver.feed(last)
    return caught.value


def claim(*parts: tuple[pb.Part.Kind, int]) -> bytes:
    envelope = pb.Envelope(update_submission=pb.UpdateSubmission(), body=announced_body(*parts))
    return pb.Frame(envelopes=[envelope]).SerializeToString()


def test_a_claim_of_100_gb_is_refused_before_any_memory_is_taken():
    for limits in (LIMITS, Limits()):
        tracemalloc.start()
        said = refusal(greeted(limits), claim((pb.Part.DELTA, 100 << 30), (pb.Part.INTEGERS, 8)))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()
        assert said.kind == "size"
        assert "107374182408 bytes: at most 68719476736 are allowed" in str(said)


def test_a_final_model_of_100_gb_is_refused_before_any_memory_is_taken():
    layout = pb.Layout(entries=[pb.Entry(name="w", shape=[25 << 30], dtype="float32", section="parameter")])
    finished = pb.RunFinished(reason="done", layout=layout)
    for parts in ([(pb.Part.VALUES, 100 << 30), (pb.Part.INTEGERS, 0)], [(pb.Part.VALUES, 8)]):
        envelope = pb.Envelope(run_finished=finished, body=announced_body(*parts))
        frame = pb.Frame(envelopes=[envelope]).SerializeToString()
        tracemalloc.start()
        with pytest.raises(ProtocolError, match="bytes: at most 68719476736 are allowed"):
            MessageReader("server", Limits()).feed(frame)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


@pytest.mark.parametrize(
    "message", [result(99_999), result(100_001), result(integers=2), result(shared=3), result(0)]
)
def test_a_wrong_layout_is_refused_at_its_announcement(message: UpdateSubmission):
    assert refusal(greeted(), framed(message)[0]).kind == "layout"


def test_a_payload_may_have_what_a_codec_could_make_of_the_model():
    fits = UpdateSubmission(7, 5, bytes(8 * 100_000 + 4096), torch.ones(1, dtype=torch.int64))
    receiver = greeted()
    ((got, _),) = [receiver.feed(frame) for frame in framed(fits)][-1].messages
    assert isinstance(got, UpdateSubmission)
    assert got.delta == fits.delta
    larger = UpdateSubmission(7, 5, bytes(8 * 100_000 + 4097), torch.ones(1, dtype=torch.int64))
    assert refusal(greeted(), framed(larger)[0]).kind == "layout"


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([(pb.Part.DELTA, 400_000)], "size"),
        ([(pb.Part.INTEGERS, 8), (pb.Part.DELTA, 400_000)], "size"),
        ([(pb.Part.DELTA, 400_000), (pb.Part.DELTA, 400_000), (pb.Part.INTEGERS, 8)], "size"),
        ([(pb.Part.DELTA, 400_001), (pb.Part.INTEGERS, 8)], "size"),
        ([(pb.Part.VALUES, 400_000), (pb.Part.INTEGERS, 8)], "size"),
        ([(99, 400_000), (pb.Part.INTEGERS, 8)], "size"),
    ],
)
def test_parts_that_no_message_has(parts: list[tuple[int, int]], kind: str):
    assert refusal(greeted(), claim(*parts)).kind == kind


def test_chunks_that_do_not_belong():
    first, second, *rest = framed(result())
    assert "no message has announced" in str(refusal(greeted(), second))
    assert "within the body" in str(refusal(greeted(), first, first))
    assert refusal(greeted(), first, rest[0]).kind == "checksum"
    assert refusal(greeted(), first, second, second).kind == "checksum"
    assert "no message has announced" in str(refusal(greeted(), first, second, *rest, rest[-1]))
    small = pb.Frame(chunk=pb.Chunk(data=b"x")).SerializeToString()
    assert "a chunk of 1 bytes" in str(refusal(greeted(), first, small))
    empty = pb.Frame(chunk=pb.Chunk()).SerializeToString()
    assert "a chunk of 0 bytes" in str(refusal(greeted(), first, empty))
    overlong = pb.Frame(chunk=pb.Chunk(data=bytes(1 << 20))).SerializeToString()
    assert "are left" in str(refusal(greeted(), first, overlong))


def test_a_wrong_checksum_is_refused():
    first, second, *_ = framed(result())
    flipped = bytearray(second)
    flipped[-1] ^= 1
    assert refusal(greeted(), first, bytes(flipped)).kind == "checksum"


def test_hello_comes_first_and_once():
    ungreeted: MessageReader[FromSite] = MessageReader("site", LIMITS)
    assert refusal(ungreeted, framed(Heartbeat())[0]).kind == "handshake"
    assert refusal(greeted(), framed(HELLO)[0]).kind == "handshake"


def test_an_envelope_beyond_its_limit_is_refused():
    long = pb.Frame(envelopes=[pb.Envelope(task_failed=pb.TaskFailed(reason="x" * 3000))]).SerializeToString()
    assert "of 3006 bytes" in str(refusal(greeted(Limits(envelope=3000)), long))


def test_messages_pass_between_the_chunks_of_a_body():
    first, *rest = framed(result())
    receiver = greeted()
    read = receiver.feed(first)
    assert announced(read) == 400_008
    assert not read.chunk
    assert receiver.feed(rest[0]) == ReadResult([], chunk=LEAST_CHUNK)
    assert receiver.feed(framed(Heartbeat(3, 4))[0]) == ReadResult([(Heartbeat(3, 4), 0)])
    ((last, size),) = [receiver.feed(frame) for frame in rest[1:]][-1].messages
    assert isinstance(last, UpdateSubmission)
    assert size == 400_008


@pytest.mark.parametrize("turned", [False, True])
def test_where_in_its_frame_a_body_is_announced_makes_no_difference(turned: bool):
    message = result()
    envelopes = [serialize(Heartbeat(3, 4)).envelope, serialize(message).envelope]
    head, receiver = pb.Frame(envelopes=envelopes[::-1] if turned else envelopes), greeted()
    read = [receiver.feed(frame) for frame, _ in frames(head, serialize(message).body, lambda _: 65536)]
    assert [announced(r) for r in read] == [400_008, *[0] * 7]
    assert [r.chunk > 0 for r in read] == [False, *[True] * 7]
    (beat, nothing), (came, size) = [m for r in read for m in r.messages]
    assert (beat, nothing, size) == (Heartbeat(3, 4), 0, 400_008)
    assert isinstance(came, UpdateSubmission)
    assert torch.equal(came.delta, message.delta)


def test_a_frame_with_more_than_it_may_have_is_refused():
    beats = [serialize(Heartbeat(3, n)).envelope for n in range(64)]
    read = greeted().feed(whole(beats))
    assert [message for message, _ in read.messages] == [Heartbeat(3, n) for n in range(64)]
    assert "more than 64 fields" in str(refusal(greeted(), whole([*beats, beats[0]])))
    assert "more than 64 fields" in str(refusal(greeted(), b"\x18\x00" * 65))
    first, second, *_ = framed(result())
    assert "two chunks" in str(refusal(greeted(), first, second + second))


# ---- anything at all ----


def noise(rng: random.Random) -> bytes:
    """Random bytes, half of them beginning as a frame does."""
    start = rng.choice([b"", b"\x0a", b"\x12", b"\x0a\x04", b"\x12\x80\x80\x40\x09"])
    return start + rng.randbytes(rng.randrange(200))


def flipped(rng: random.Random) -> bytes:
    """A valid frame with a few bits turned over."""
    frame = bytearray(rng.choice(VALID))
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(min(len(frame), 120)) if rng.random() < 0.8 else rng.randrange(len(frame))
        frame[at] ^= 1 << rng.randrange(8)
    return bytes(frame)


def cut(rng: random.Random) -> bytes:
    """A valid frame that ends too early, or has another's end."""
    one, other = rng.choice(VALID), rng.choice(VALID)
    return one[: rng.randrange(min(len(one), 300))] + rng.choice([b"", other[-50:]])


def shuffled(rng: random.Random) -> bytes:
    """A valid frame at a time when it is not to be sent."""
    return rng.choice(VALID)


SMALL = Layout((*Layout.flat(40_000).entries, Entry("n", (), "int64", "integer")))
VALID = [
    *framed(HELLO),
    *framed(Heartbeat(1, 2)),
    *framed(UpdateReady(1, 2, {"norm": 3.0})),
    *framed(TaskFailed(3, "no memory")),
    *framed(result(40_000)),
    *framed(UpdateSubmission(8, 5, b"payload", torch.ones(1, dtype=torch.int64))),
]


@pytest.mark.parametrize("make", [noise, flipped, cut, shuffled])
def test_five_thousand_hostile_frames_of_a_kind_are_taken_or_refused(make: Callable[[random.Random], bytes]):
    rng = random.Random(make.__name__)
    ends: Counter[str] = Counter()
    longest, receiver = 0, greeted(Limits(layout=SMALL))
    for _ in range(5000):
        try:
            receiver.feed(make(rng))
            ends["taken"] += 1
        except ProtocolError as violation:
            longest = max(longest, len(str(violation)))
            ends[violation.kind] += 1
            receiver = greeted(Limits(layout=SMALL))
    assert sum(ends.values()) == 5000
    assert longest < 500
    assert ends.total() - ends["taken"] > 1000, ends


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ({f"{k:03}" + "x" * 97: 1.0 for k in range(100)}, "has 100 metrics: at most 32 are allowed"),
        ({str(k): 1.0 for k in range(33)}, "has 33 metrics: at most 32 are allowed"),
        ({"x" * 65: 1.0}, "a name of 65 characters: at most 64 are allowed"),
    ],
)
def test_many_or_long_names_of_metrics_are_refused_before_memory_is_taken(
    metrics: dict[str, float], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = list[int]()
    monkeypatch.setattr("offbeat.net.wire.reader.allocate", lambda part, size: taken.append(size))
    for message in (replace(result(), metrics=metrics), UpdateReady(7, 5, metrics)):
        with pytest.raises(ProtocolError, match=says) as caught:
            greeted().feed(framed(message)[0])
        assert caught.value.kind == "metrics"
    assert taken == []


def test_an_update_with_as_many_metrics_as_it_may_have_is_read() -> None:
    metrics = {f"{k:02}" + "x" * 62: float(k) for k in range(32)}
    (read,) = greeted().feed(framed(UpdateReady(7, 5, metrics))[0]).messages
    assert read[0] == UpdateReady(7, 5, metrics)
