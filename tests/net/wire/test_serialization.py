"""Every message comes out of the wire as it went in; the generated module is that of the proto file."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from offbeat.core.layout import Entry, Layout
from offbeat.core.model import Model
from offbeat.net.messages import (
    EvaluationRequest,
    EvaluationResult,
    FromServer,
    FromSite,
    Heartbeat,
    Leave,
    Message,
    ModelRequest,
    ModelResponse,
    Register,
    Registered,
    Rejected,
    Renewal,
    Renewed,
    RunFinished,
    TaskAssignment,
    TaskCancel,
    TaskFailed,
    TaskRecall,
    UpdateAck,
    UpdateReady,
    UpdateSubmission,
    UploadGrant,
    shorten,
)
from offbeat.net.transport import ProtocolError
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.limits import Limits
from offbeat.net.wire.reader import MessageReader, parse
from offbeat.net.wire.serialization import serialize
from offbeat.net.wire.writer import MessageWriter, frames
from scripts.wire_schema import PROTO, SOURCE, schema
from tests.net.announced_body import announced_body
from tests.sampling import examples

COUNT = st.integers(0, 2**63 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
REASON = st.text(max_size=600).map(shorten)
METRICS = st.dictionaries(st.text(max_size=64), FINITE, max_size=5)
SIZES = st.sampled_from([0, 1, 2, 3, 1000, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 700_000])
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@st.composite
def vectors(draw: st.DrawFn, dtype: torch.dtype = torch.float32, size: int | None = None) -> Tensor:
    length = draw(SIZES) if size is None else size
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    if dtype == torch.int64:
        return torch.randint(-(2**62), 2**62, (length,), generator=generator)
    values = torch.randn(length, generator=generator)
    special = [float("nan"), float("inf"), -float("inf"), -0.0, 1e-45]
    values[: len(special)] = torch.tensor(special)[:length]
    return values


@st.composite
def models(draw: st.DrawFn) -> Model:
    size, integers = draw(SIZES), draw(st.integers(0, 3))
    entries = [Entry("w", (size,), "float32", "parameter")]
    entries += [Entry(f"n{i}", (), "int64", "integer") for i in range(integers)]
    shared = draw(st.sampled_from([0, size]))
    return Model(
        Layout(tuple(entries), shared),
        draw(vectors(size=size)),
        draw(vectors(torch.int64, integers)),
        draw(vectors(size=shared)),
    )


from_site: st.SearchStrategy[FromSite] = st.one_of(
    st.builds(Heartbeat, st.none() | COUNT, COUNT),
    st.builds(ModelRequest, COUNT, COUNT),
    st.builds(UpdateReady, COUNT, COUNT, METRICS),
    st.builds(
        UpdateSubmission,
        COUNT,
        COUNT,
        vectors() | st.binary(max_size=300),
        vectors(torch.int64),
        METRICS,
        FINITE,
        st.none() | vectors(),
    ),
    st.builds(TaskFailed, COUNT, REASON),
    st.builds(EvaluationResult, COUNT, COUNT, METRICS, REASON),
    st.builds(Leave, REASON),
    st.builds(Renewed),
)
hellos = st.builds(
    Register,
    COUNT,
    COUNT,
    st.lists(COUNT, max_size=5).map(tuple),
    st.none() | COUNT,
    st.text(max_size=200),
    COUNT,
    st.booleans(),
)
from_server: st.SearchStrategy[FromServer] = st.one_of(
    st.builds(
        Registered,
        COUNT,
        st.text(max_size=200),
        st.dictionaries(st.text(max_size=5), JSON),
        st.floats(0, 1e9),
        st.booleans(),
    ),
    st.builds(Rejected, REASON, st.booleans()),
    st.builds(Heartbeat, st.none() | COUNT, COUNT),
    st.builds(TaskAssignment, COUNT, COUNT, COUNT, COUNT, models(), COUNT, st.floats(0, 1e9), st.booleans()),
    st.builds(ModelResponse, COUNT, COUNT, COUNT, st.none() | models()),
    st.builds(EvaluationRequest, COUNT, models()),
    st.builds(TaskRecall, COUNT),
    st.builds(UploadGrant, COUNT, st.none() | COUNT),
    st.builds(TaskCancel, COUNT, REASON),
    st.builds(UpdateAck, COUNT, st.booleans(), REASON),
    st.builds(RunFinished, REASON, st.text(max_size=200), st.none() | models()),
    st.builds(Renewal, st.text(max_size=256), COUNT),
)


def plain(value: Any) -> Any:
    """A message as values that compare: tensors as their bytes."""
    if isinstance(value, Tensor):
        return value.dtype, value.numpy().tobytes()
    if isinstance(value, Model):
        return value.layout, plain(value.values), plain(value.integers), plain(value.shared)
    if isinstance(value, dict):
        return sorted((key, repr(inner)) for key, inner in value.items())
    if hasattr(value, "__slots__") and not isinstance(value, str | bytes | int | float):
        return type(value), [plain(getattr(value, name)) for name in value.__slots__]
    return value


def through(messages: list[Any], receiver: MessageReader[Any]) -> list[Any]:
    """What comes out of a wire."""
    outbox, out = MessageWriter(), []
    for message in messages:
        outbox.put(message)
    while not outbox.empty:
        out += [message for message, _ in receiver.feed(outbox.frame()).messages]
    return out


def last_heartbeat_only(messages: list[Any]) -> list[Any]:
    """What is sent of messages that are queued at once."""
    heartbeats = [m for m in messages if isinstance(m, Heartbeat)]
    return [m for m in messages if not isinstance(m, Heartbeat) or m is heartbeats[-1]]


def task_of(message: Message) -> Any:
    return getattr(message, "task", None)


def in_order(sent: list[Any], got: list[Any]) -> None:
    """Everything is there once, and what is said of one task came in its order, but for heartbeats."""
    assert sorted(map(repr, map(plain, sent))) == sorted(map(repr, map(plain, got)))
    for task in {task_of(m) for m in sent}:

        def of(messages: list[Any], task: Any = task) -> list[Any]:
            return [plain(m) for m in messages if task_of(m) == task and not isinstance(m, Heartbeat)]

        assert of(sent) == of(got)


@examples(150)
@given(hellos, st.lists(from_site, max_size=6))
def test_what_a_site_says_arrives(hello: Register, said: list[FromSite]):
    said = last_heartbeat_only(said)
    got = through([hello, *said], MessageReader("site", Limits(tensors=10)))
    assert plain(got[0]) == plain(hello)
    in_order(said, got[1:])


@examples(150)
@given(st.lists(from_server, max_size=6))
def test_what_the_server_says_arrives(said: list[FromServer]):
    said = last_heartbeat_only(said)
    in_order(said, through(list(said), MessageReader("server", Limits())))


@given(st.integers(0, 3), from_site, st.integers(64 << 10, 300 << 10))
@examples(50)
def test_frames_are_protobuf_and_protobufs_own_are_read(before: int, message: FromSite, size: int):
    outgoing = serialize(message)
    beats = [serialize(Heartbeat(3, steps)).envelope for steps in range(before)]
    head = pb.Frame(envelopes=[*beats, outgoing.envelope])
    for frame, carried in frames(head, outgoing.body, lambda _: size):
        theirs = pb.Frame.FromString(frame)
        assert theirs.envelopes or theirs.HasField("chunk")
        parsed = parse(frame, 1 << 20)
        assert list(theirs.envelopes) == parsed.envelopes
        assert (theirs.chunk.sum, theirs.chunk.data) == (parsed.checksum, bytes(parsed.data or b""))
        assert carried == len(theirs.chunk.data)
        twisted = theirs.chunk.SerializeToString()
        length = pb.Frame(chunk=theirs.chunk).SerializeToString()[1 : -len(twisted)] if twisted else b""
        if twisted:  # the chunk first, among fields that nobody knows, as nobody writes it
            said = pb.Frame(envelopes=parsed.envelopes).SerializeToString()
            unknown = (b"\x18\x81\x01", b"\x21" + bytes(8), b"\x2d" + bytes(4), b"\x32\x01x")
            again = parse(b"".join((*unknown, b"\x12", length, twisted, *unknown, said)), 1 << 20)
            assert again == parsed


def test_a_layout_travels_once_and_again_when_it_changes():
    def assign(task: int, size: int) -> TaskAssignment:
        return TaskAssignment(task, 0, 1, 0, Model.empty(Layout.flat(size)))

    outbox, receiver, brought = MessageWriter(), MessageReader[FromServer]("server", Limits()), []
    for message in (assign(0, 5), assign(1, 5), assign(2, 6), assign(3, 6)):
        outbox.put(message)
    while not outbox.empty:
        frame = outbox.frame()
        (envelope,) = pb.Frame.FromString(frame).envelopes
        brought.append(envelope.task_assignment.HasField("layout"))
        ((message, _),) = receiver.feed(frame).messages
        assert isinstance(message, TaskAssignment)
        assert message.model.layout == Layout.flat(5 if message.task < 2 else 6)
    assert brought == [True, False, True, False]


@pytest.mark.parametrize(
    ("envelope", "why"),
    [
        (pb.Envelope(), "without a message"),
        (pb.Envelope(registered=pb.Registered()), "not for this side"),
        (pb.Envelope(heartbeat=pb.Heartbeat(steps=1 << 63)), "steps = "),
        (pb.Envelope(task_failed=pb.TaskFailed(reason="x" * 501)), "reason has 501"),
        (pb.Envelope(update_ready=pb.UpdateReady(metrics={str(i): 0.0 for i in range(101)})), "101 metrics"),
        (pb.Envelope(update_ready=pb.UpdateReady(metrics={"x" * 101: 0.0})), "a name of 101 characters"),
        (pb.Envelope(register=pb.Register(run="x" * 201)), "run has 201"),
        (pb.Envelope(register=pb.Register(labels=[0] * 100_001)), "labels has 100001 entries"),
        (pb.Envelope(heartbeat=pb.Heartbeat(), body=announced_body((pb.Part.DELTA, 4))), "which only"),
        (pb.Envelope(update_submission=pb.UpdateSubmission()), "announces parts"),
    ],
)
def test_what_a_site_may_not_say(envelope: pb.Envelope, why: str):
    receiver: MessageReader[FromSite] = MessageReader("site", Limits())
    if not envelope.HasField("register"):
        receiver.feed(pb.Frame(envelopes=[pb.Envelope(register=pb.Register())]).SerializeToString())
    with pytest.raises(ProtocolError, match=why):
        receiver.feed(pb.Frame(envelopes=[envelope]).SerializeToString())


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_what_a_site_has_measured_need_not_be_finite(number: str):
    """Its update is refused later, by whoever tells it so: here, it would be its conversation."""
    receiver: MessageReader[FromSite] = MessageReader("site", Limits())
    measured = {"loss": float(number)}
    said = [
        pb.Envelope(register=pb.Register()),
        pb.Envelope(update_ready=pb.UpdateReady(metrics=measured)),
        pb.Envelope(
            update_submission=pb.UpdateSubmission(metrics=measured, lr=float(number)),
            body=announced_body((pb.Part.DELTA, 0), (pb.Part.INTEGERS, 0)),
        ),
    ]
    _, done, result = (m for m, _ in receiver.feed(pb.Frame(envelopes=said).SerializeToString()).messages)
    assert isinstance(done, UpdateReady)
    assert isinstance(result, UpdateSubmission)
    assert str(done.metrics["loss"]) == str(result.metrics["loss"]) == str(result.lr) == number


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"a": NaN}', "not JSON"),
        ('{"a": 1e999}', "finite"),
        ('{"a":' * 33 + "1" + "}" * 33, "nested deeper"),
        ('{"a":' + "[" * 100_000, "not JSON"),
    ],
)
def test_a_plan_that_is_refused(plan: str, why: str):
    receiver: MessageReader[FromServer] = MessageReader("server", Limits())
    frame = pb.Frame(envelopes=[pb.Envelope(registered=pb.Registered(plan=plan))]).SerializeToString()
    with pytest.raises(ProtocolError, match=why):
        receiver.feed(frame)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([pb.Entry(name="w", shape=[1 << 40] * 32, dtype="float32", section="parameter")], "bytes"),
        ([pb.Entry(name="w", shape=[1], dtype="__class__", section="parameter")], "dtype"),
        ([pb.Entry(name="w", shape=[1], dtype="float32", section="other")], "section"),
        ([pb.Entry(name="w", shape=[], dtype="float32", section="buffer")] * 2, "one name"),
        ([pb.Entry(name=str(i), dtype="int64", section="integer") for i in range(11)], "11 tensors"),
    ],
)
def test_a_layout_that_is_refused(entries: list[pb.Entry], why: str):
    receiver: MessageReader[FromServer] = MessageReader("server", Limits(tensors=10))
    said = pb.Envelope(task_assignment=pb.TaskAssignment(layout=pb.Layout(entries=entries)))
    with pytest.raises(ProtocolError, match=why):
        receiver.feed(pb.Frame(envelopes=[said]).SerializeToString())


def test_our_own_long_reasons_are_cut_to_what_is_accepted():
    got = through(
        [Rejected("x" * 5000), RunFinished("in\n two\x00 lines\ud800")], MessageReader("server", Limits())
    )
    assert got == [Rejected("x" * 499 + "…"), RunFinished("in two lines")]


def test_the_schema_is_that_of_the_declarations():
    assert PROTO.read_text(encoding="utf-8") == schema(), "python scripts/wire_schema.py makes it again"


def test_the_generated_module_is_current(tmp_path: Path):
    pytest.importorskip("grpc_tools")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(SOURCE), f"--python_out={tmp_path}",
               "offbeat/net/wire/wire.proto"]  # fmt: skip
    subprocess.run(command, check=True, cwd=SOURCE)
    kept = Path(pb.__file__).read_text(encoding="utf-8")
    made = (tmp_path / "offbeat" / "net" / "wire" / "wire_pb2.py").read_text(encoding="utf-8")
    assert descriptor_of(made) == descriptor_of(kept), "python scripts/wire_schema.py makes it again"


def descriptor_of(module: str) -> str:
    """What is the same whichever version of the compiler has made it."""
    [line] = [line for line in module.splitlines() if line.startswith("DESCRIPTOR = ")]
    return line
