"""Letters come back as they were, and what is no letter is refused."""

import json
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

from offbeat.core.model import Entry, Layout, Model
from offbeat.flower.context_state import Memory, PausedTask, load_state, save_state
from offbeat.flower.serialization import LONGEST_TEXT, TO_SERVER, TO_SITES, decode, encode, packed, unpacked
from offbeat.net.messages import (
    Leave,
    ModelRequest,
    ModelResponse,
    Register,
    TaskAssignment,
    TaskCancel,
    TaskFailed,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.server.validation import InvalidUpdateError

LAYOUT = Layout((Entry("w", (2, 2), "float32", "parameter"), Entry("n", (), "int64", "integer")), shared=3)
NUMBERS = st.integers(0, 2**62)
FLOATS = st.floats(allow_nan=False)
VECTORS = st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(torch.tensor)
METRICS = st.dictionaries(st.text(max_size=5), FLOATS, max_size=3)


def model(first: float = 1.0) -> Model:
    values = torch.tensor([first, -0.0, 3.5, float("inf")])
    return Model(LAYOUT, values, torch.tensor([2**60]), torch.tensor([1.0, 2.0, 3.0]))


RESULTS = st.builds(
    UpdateSubmission, NUMBERS, NUMBERS, VECTORS | st.binary(max_size=9), st.just(torch.tensor([3])), METRICS,
    FLOATS, st.none() | VECTORS,
)  # fmt: skip
SAID = st.one_of(
    st.builds(
        Register, NUMBERS, NUMBERS, st.none() | st.lists(NUMBERS, max_size=3).map(tuple), st.none(), st.text()
    ),
    st.builds(ModelRequest, NUMBERS, NUMBERS),
    RESULTS,
    st.builds(TaskFailed, NUMBERS, st.text(max_size=9)),
    st.builds(Leave, st.text(max_size=9)),
)
TOLD = st.one_of(
    st.builds(
        TaskAssignment, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.just(model()), NUMBERS, FLOATS, st.booleans()
    ),
    st.builds(ModelResponse, NUMBERS, NUMBERS, NUMBERS, st.sampled_from([None, model(2.0)])),
    st.builds(TaskCancel, NUMBERS, st.text(max_size=9)),
    st.builds(UpdateAck, NUMBERS, st.booleans(), st.text(max_size=9)),
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


@given(st.lists(SAID, max_size=4), st.dictionaries(st.text(max_size=5), NUMBERS, max_size=2))
def test_what_a_site_says_comes_back_as_it_was(said: list[Any], head: dict[str, Any]) -> None:
    letter = decode(travelled(encode(head, said)), TO_SERVER)
    assert letter.head == head
    assert [plain(m) for m in letter.messages] == [plain(m) for m in said]


@given(st.lists(TOLD, max_size=4))
def test_what_a_server_says_comes_back_as_it_was(told: list[Any]) -> None:
    letter = decode(travelled(encode({}, told)), TO_SITES, lambda _: LAYOUT)
    assert [plain(m) for m in letter.messages] == [plain(m) for m in told]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_tensors_of_any_kind_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape, dtype=dtype)
    _, found = unpacked(travelled(packed({}, {"a": tensor})))
    assert plain(found["a"]) == plain(tensor)


def record(text: str = '{"head":{},"messages":[]}', **arrays: Array) -> RecordDict:
    return RecordDict({"offbeat": ConfigRecord({"text": text}), "tensors": ArrayRecord(dict(arrays))})


def message(**entry: Any) -> RecordDict:
    return record(json.dumps({"head": {}, "messages": [entry]}))


BAD = [
    (RecordDict(), "not one of Offbeat's"),
    (record("x" * (LONGEST_TEXT + 1)), "not one of Offbeat's"),
    (record("{"), "no JSON"),
    (record("[" * 100_000), "no JSON"),
    (record("[]"), "no JSON object"),
    (record('{"head":[],"messages":[]}'), "no head"),
    (record(json.dumps({"head": {}, "messages": [{}] * 65})), "too many"),
    (message(kind="Over", reason=""), "not one that is expected"),
    (message(kind="Assign", task=1), "not one that is expected"),
    (message(kind="Asks", task="1", steps=2), r"message 0 \(Asks\)"),
    (message(kind="Asks", task=1), r"message 0 \(Asks\)"),
    (message(kind="Asks", task=1, steps=2, more=3), r"message 0 \(Asks\)"),
    (message(kind="Asks", task=1, steps=True), r"message 0 \(Asks\)"),
    (message(kind="Result", task=1, steps=2, metrics={"a": "b"}), r"message 0 \(Result\)"),
    (message(kind="Result", task=1, steps=2), "0.delta is missing"),
    (record(a=Array("float32", (2**40,), "offbeat.raw", b"")), "another number"),
    (record(a=Array("float32", (-1, 2), "offbeat.raw", b"")), "of a kind"),
    (record(a=Array("object", (1,), "offbeat.raw", b"12345678")), "of a kind"),
    (record(a=Array("float32", (1,), "numpy.ndarray", b"1234")), "of a kind"),
]


@pytest.mark.parametrize(("bad", "why"), BAD, ids=range(len(BAD)))
def test_what_is_no_letter_is_refused(bad: RecordDict, why: str) -> None:
    with pytest.raises(InvalidUpdateError, match=why):
        decode(bad, TO_SERVER)


def test_a_model_of_another_layout_is_refused() -> None:
    told = encode({}, [TaskAssignment(1, 0, 2, 3, model())])
    wider = Layout((Entry("w", (5,), "float32", "parameter"),))
    with pytest.raises(InvalidUpdateError, match=r"0\.model\.values is not of the layout"):
        decode(told, TO_SITES, lambda _: wider)
    with pytest.raises(InvalidUpdateError, match=r"0\.model is missing"):
        decode(told, TO_SITES)


@given(st.binary(max_size=60))
def test_any_text_is_opened_or_refused(text: bytes) -> None:
    with suppress(InvalidUpdateError):
        decode(record(text.decode("latin-1")), TO_SERVER)


def memories() -> Iterator[Memory]:
    state = {"a": torch.arange(3.0), "b.c": torch.tensor(2.0, dtype=torch.float64)}
    yield Memory()
    yield Memory("run", state)
    yield Memory("run", {}, (4, state))
    yield Memory(
        "run", state, (4, {}), PausedTask(TaskAssignment(7, 2, 9, 5, model(), 4, 0.5), {"x": torch.zeros(2)})
    )


@pytest.mark.parametrize("memory", list(memories()))
def test_a_memory_comes_back_as_it_was(memory: Memory) -> None:
    context = Context(1, 2, {}, RecordDict(), {})
    context.state["someone's"] = ConfigRecord({"own": 1})
    save_state(memory, context.state)
    found = load_state(travelled(context.state), LAYOUT)
    for name in ("run", "state", "pending"):
        assert repr(getattr(found, name)) == repr(getattr(memory, name))
    assert (found.half is None) == (memory.half is None)
    if found.half is not None and memory.half is not None:
        assert plain(found.half.assign) == plain(memory.half.assign)
        assert plain(found.half.training["x"]) == plain(memory.half.training["x"])
    assert "someone's" in context.state
    assert load_state(RecordDict(), LAYOUT) == Memory()


def test_a_memory_is_of_one_run_and_of_what_was_accepted() -> None:
    old, new = {"a": torch.zeros(1)}, {"a": torch.ones(1)}
    memory = Memory("run", old, (4, new))
    memory.begin("run")
    memory.settle(3, accepted=True)
    assert memory.state is old
    memory.settle(4, accepted=False)
    assert memory.state is old
    memory.pending = 5, new
    memory.settle(5, accepted=True)
    assert memory.state is new
    memory.begin("another")
    assert memory == Memory("another")
