"""Messages come back from a Flower message as they were, and anything else is refused."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from offbeat.core.layout import Entry, Layout
from offbeat.core.model import Model
from offbeat.flower.context_state import Memory, PausedTask, load_state, save_state
from offbeat.flower.serialization import MOST_MESSAGES, decode, encode
from offbeat.net.messages import (
    Heartbeat,
    Leave,
    ModelRequest,
    ModelResponse,
    Register,
    Registered,
    TaskAssignment,
    TaskCancel,
    TaskFailed,
    UpdateAck,
    UpdateSubmission,
    shorten,
)
from offbeat.net.transport import ProtocolError
from offbeat.net.wire.limits import MOST_CHUNK

LAYOUT = Layout((Entry("w", (2, 2), "float32", "parameter"), Entry("n", (), "int64", "integer")), shared=3)
NUMBERS = st.integers(0, 2**62)
FLOATS = st.floats(allow_nan=False)
FACTORS = st.floats(0, 1e9)
PLANS = st.dictionaries(st.text(max_size=5), FACTORS, max_size=3)
REASONS = st.text(max_size=9).map(shorten)
VECTORS = st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(torch.tensor)
METRICS = st.dictionaries(st.text(max_size=5), FLOATS, max_size=3)


def model(first: float = 1.0) -> Model:
    values = torch.tensor([first, -0.0, 3.5, float("inf")])
    return Model(LAYOUT, values, torch.tensor([2**60]), torch.tensor([1.0, 2.0, 3.0]))


LABELS = st.lists(NUMBERS, max_size=3).map(tuple)
FROM_SITE = st.one_of(
    st.builds(Register, NUMBERS, NUMBERS, LABELS, st.none(), st.text(max_size=200)),
    st.builds(ModelRequest, NUMBERS, NUMBERS),
    st.builds(
        UpdateSubmission, NUMBERS, NUMBERS, VECTORS | st.binary(max_size=9), st.just(torch.tensor([3])),
        METRICS, FLOATS, st.none() | VECTORS,
    ),
    st.builds(TaskFailed, NUMBERS, REASONS),
    st.builds(Leave, REASONS),
)  # fmt: skip
FROM_SERVER = st.one_of(
    st.builds(Registered, NUMBERS, st.text(max_size=9), PLANS, FACTORS),
    st.builds(
        TaskAssignment, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.just(model()), NUMBERS, FACTORS, st.booleans()
    ),
    st.builds(ModelResponse, NUMBERS, NUMBERS, NUMBERS, st.sampled_from([None, model(2.0)])),
    st.builds(TaskCancel, NUMBERS, REASONS),
    st.builds(UpdateAck, NUMBERS, st.booleans(), REASONS),
)


def plain(value: Any) -> Any:
    """Something that can be compared."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.reshape(-1).view(torch.uint8).tolist()
    if isinstance(value, Model):
        return plain(value.values), plain(value.integers), plain(value.shared)
    if hasattr(value, "__slots__"):
        return type(value).__name__, [plain(getattr(value, name)) for name in value.__slots__]
    return value


def travelled(record: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(record))


@given(st.lists(FROM_SITE, max_size=4))
def test_the_messages_of_a_site_come_back_as_they_were(sent: list[Any]) -> None:
    found = decode(travelled(encode(sent)), "site")
    assert [plain(m) for m in found] == [plain(m) for m in sent]


@given(st.lists(FROM_SERVER, max_size=4))
def test_the_messages_of_the_server_come_back_as_they_were(sent: list[Any]) -> None:
    found = decode(travelled(encode(sent)), "server")
    assert [plain(m) for m in found] == [plain(m) for m in sent]


def update(values: int) -> UpdateSubmission:
    return UpdateSubmission(1, 2, torch.arange(float(values)), torch.zeros(0, dtype=torch.int64))


def test_a_large_update_is_several_arrays() -> None:
    record = encode([update(3_000_000)])
    assert len(record["offbeat"]) == 4  # The announcement and three parts of the body.
    [found] = decode(travelled(record), "site", Layout.flat(3_000_000))
    assert isinstance(found, UpdateSubmission)
    assert isinstance(found.delta, Tensor)
    assert torch.equal(found.delta, torch.arange(3e6))


def record(*frames: bytes) -> RecordDict:
    arrays = {str(i): Array("uint8", (len(f),), "offbeat.frame", f) for i, f in enumerate(frames)}
    return RecordDict({"offbeat": ArrayRecord(arrays)})


def frames_of(*messages: Any) -> list[bytes]:
    return [array.data for array in encode(messages)["offbeat"].values()]


WHOLE = frames_of(update(3 * MOST_CHUNK // 4))
BAD = [
    (RecordDict(), "not one of Offbeat's"),
    (RecordDict({"offbeat": ConfigRecord({"text": ""})}), "not one of Offbeat's"),
    (
        RecordDict({"offbeat": ArrayRecord({"1": Array("uint8", (1,), "offbeat.frame", b"x")})}),
        "0 is missing",
    ),
    (record(b"not protobuf"), "not protobuf"),
    (record(b""), "neither an envelope nor a chunk"),
    (encode([TaskCancel(1, "")]), "not for this side"),
    (encode([TaskFailed(i, "") for i in range(MOST_MESSAGES + 1)]), "more than 64 messages"),
    (record(*WHOLE[:-1]), "not complete"),
    (record(WHOLE[0], *WHOLE), "within the body"),
    (record(WHOLE[0], *WHOLE[2:]), "checksum"),
    (encode([update(5)]), "has 20 bytes of delta: the model has 16"),
]


@pytest.mark.parametrize(("bad", "why"), BAD, ids=range(len(BAD)))
def test_anything_else_is_refused(bad: RecordDict, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        decode(bad, "site", Layout.flat(4) if "20 bytes" in why else None)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(frame: bytes) -> None:
    with suppress(ProtocolError):
        decode(record(frame), "site")


def test_only_the_last_heartbeat_is_sent() -> None:
    assert decode(encode([Heartbeat(1, 1), Heartbeat(1, 2)]), "site") == [Heartbeat(1, 2)]


def memories() -> Iterator[Memory]:
    state = {"a": torch.arange(3.0), "b.c": torch.tensor(2.0, dtype=torch.float64)}
    yield Memory()
    yield Memory("run", state)
    yield Memory("run", {}, (4, state))
    yield Memory(
        "run", state, (4, {}), PausedTask(TaskAssignment(7, 2, 9, 5, model(), 4, 0.5), {"x": torch.zeros(2)})
    )


def sorted_state(tensors: dict[str, Tensor]) -> list[tuple[str, Any]]:
    return sorted((name, plain(tensor)) for name, tensor in tensors.items())


@pytest.mark.parametrize("memory", list(memories()))
def test_a_memory_comes_back_as_it_was(memory: Memory) -> None:
    context = Context(1, 2, {}, RecordDict(), {})
    context.state["someone's"] = ConfigRecord({"own": 1})
    save_state(memory, context.state)
    found = load_state(travelled(context.state))
    assert found.run == memory.run
    assert sorted_state(found.state) == sorted_state(memory.state)
    assert (found.pending is None) == (memory.pending is None)
    if found.pending is not None and memory.pending is not None:
        assert found.pending[0] == memory.pending[0]
        assert sorted_state(found.pending[1]) == sorted_state(memory.pending[1])
    assert (found.paused is None) == (memory.paused is None)
    if found.paused is not None and memory.paused is not None:
        assert plain(found.paused.assignment) == plain(memory.paused.assignment)
        assert plain(found.paused.training["x"]) == plain(memory.paused.training["x"])
    assert "someone's" in context.state
    save_state(Memory(), context.state)
    assert load_state(travelled(context.state)).paused is None
    assert load_state(RecordDict()) == Memory()


def test_a_memory_is_of_one_run_and_of_what_was_accepted() -> None:
    old, new = {"a": torch.zeros(1)}, {"a": torch.ones(1)}
    memory = Memory("run", old, (4, new))
    memory.begin("run")
    memory.acknowledge(3, accepted=True)
    assert memory.state is old
    memory.acknowledge(4, accepted=False)
    assert memory.state is old
    memory.pending = 5, new
    memory.acknowledge(5, accepted=True)
    assert memory.state is new
    memory.begin("another")
    assert memory == Memory("another")
