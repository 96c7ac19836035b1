"""Messages as envelopes and back; everything that comes from the peer is checked here.

The module `wire_pb2` is generated. After a change of `wire.proto`:

    python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/offbeat/net/wire.proto
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offbeat.core.errors import RunError
from offbeat.core.model import Entry, Layout, Model
from offbeat.net import wire_pb2 as pb
from offbeat.net.fields import (
    LABELS,
    REASON,
    RUN,
    Violation,
    count,
    finite,
    json_object,
    metrics,
    not_negative,
    shortened,
    text,
)
from offbeat.net.limits import Limits
from offbeat.net.messages import (
    Asks,
    Assign,
    Beat,
    Bye,
    CutShort,
    Done,
    Failed,
    Forget,
    Fresh,
    FromServer,
    FromSite,
    Hello,
    MaySend,
    Message,
    Over,
    Receipt,
    Refused,
    Result,
    Welcome,
)
from offbeat.net.rooms import Rooms

VALUES, INTEGERS, SHARED = pb.Part.VALUES, pb.Part.INTEGERS, pb.Part.SHARED
DELTA, PAYLOAD = pb.Part.DELTA, pb.Part.PAYLOAD
_WIDTH: dict[int, int] = {VALUES: 4, INTEGERS: 8, SHARED: 4, DELTA: 4, PAYLOAD: 1}
_SECTIONS = {
    "parameter": {"float32", "float16", "bfloat16"},
    "buffer": {"float32", "float16", "bfloat16", "float64"},
    "integer": {"int64", "int32", "int16", "int8", "uint8", "bool"},
}
FROM_SITE = frozenset({"hello", "beat", "asks", "done", "result", "failed", "bye"})
FROM_SERVER = frozenset({"welcome", "refused", "beat", "assign", "fresh", "cut_short", "may_send", "forget",
                         "receipt", "over"})  # fmt: skip


# ---- our messages as envelopes ----


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to be sent: its envelope and the bytes of its body, which are those of the tensors."""

    message: Message
    envelope: pb.Envelope
    body: tuple[memoryview, ...] = ()


def encode(message: Message, known: Layout | None = None) -> Outgoing:
    """The envelope and body of a message; `known` is the layout that the peer has been told.

    A number that the protocol has no room for, such as one below 0, raises `ValueError`.
    """
    match message:
        case Assign(model=model) | Fresh(model=Model() as model):
            parts = _model_parts(model)
            layout = None if known is not None and model.layout == known else _layout(model.layout)
            envelope = _assign(message, layout) if isinstance(message, Assign) else _fresh(message, layout)
        case Result():
            parts = _result_parts(message)
            envelope = pb.Envelope(
                result=pb.Result(
                    task=message.task, steps=message.steps, metrics=message.metrics, lr=message.lr
                )
            )
        case _:
            return Outgoing(message, _plain(message))
    body = tuple(part for _, part in parts)
    envelope.parts.extend(pb.Part(kind=kind, bytes=len(part)) for kind, part in parts)
    return Outgoing(message, envelope, body)


def _plain(message: Message) -> pb.Envelope:
    """The envelope of a message without tensors."""
    match message:
        case Hello(samples, steps, labels, holds, run):
            told = None if labels is None else pb.Labels(counts=labels)
            hello = pb.Hello(samples=samples, steps_per_epoch=steps, labels=told, holds=holds, run=run)
            return pb.Envelope(hello=hello)
        case Beat(task, steps):
            return pb.Envelope(beat=pb.Beat(task=task, steps=steps))
        case Asks(task, steps):
            return pb.Envelope(asks=pb.Asks(task=task, steps=steps))
        case Done(task, steps, measured):
            return pb.Envelope(done=pb.Done(task=task, steps=steps, metrics=measured))
        case Failed(task, reason):
            return pb.Envelope(failed=pb.Failed(task=task, reason=shortened(reason)))
        case Bye(reason):
            return pb.Envelope(bye=pb.Bye(reason=shortened(reason)))
        case Welcome(client, run, plan, lease):
            said = json.dumps(plan, allow_nan=False)
            return pb.Envelope(welcome=pb.Welcome(client=client, run=run, plan=said, lease=lease))
        case Refused(reason, final):
            return pb.Envelope(refused=pb.Refused(reason=shortened(reason), final=final))
        case Fresh():
            return _fresh(message, None)
        case CutShort(task):
            return pb.Envelope(cut_short=pb.CutShort(task=task))
        case MaySend(task, bits):
            return pb.Envelope(may_send=pb.MaySend(task=task, bits=bits))
        case Forget(task, reason):
            return pb.Envelope(forget=pb.Forget(task=task, reason=shortened(reason)))
        case Receipt(task, accepted, reason):
            receipt = pb.Receipt(task=task, accepted=accepted, reason=shortened(reason))
            return pb.Envelope(receipt=receipt)
        case Over(reason):
            return pb.Envelope(over=pb.Over(reason=shortened(reason)))
    raise TypeError(f"{type(message).__name__} is no message")


def _assign(message: Assign, layout: pb.Layout | None) -> pb.Envelope:
    return pb.Envelope(
        assign=pb.Assign(
            task=message.task,
            base=message.base,
            steps=message.steps,
            seed=message.seed,
            ask_after=message.ask_after,
            lr_factor=message.lr_factor,
            hold=message.hold,
            layout=layout,
        )
    )


def _fresh(message: Fresh, layout: pb.Layout | None) -> pb.Envelope:
    fresh = pb.Fresh(task=message.task, version=message.version, clock=message.clock, layout=layout)
    return pb.Envelope(fresh=fresh)


def _layout(layout: Layout) -> pb.Layout:
    entries = [pb.Entry(name=e.name, shape=e.shape, dtype=e.dtype, section=e.section) for e in layout.entries]
    return pb.Layout(entries=entries, shared=layout.shared)


Parts = list[tuple[pb.Part.Kind, memoryview]]


def _model_parts(model: Model) -> Parts:
    parts: Parts = [(VALUES, octets(model.values)), (INTEGERS, octets(model.integers))]
    return [*parts, (SHARED, octets(model.shared))] if model.layout.shared else parts


def _result_parts(result: Result) -> Parts:
    delta = result.delta
    first = (PAYLOAD, memoryview(delta)) if isinstance(delta, bytes) else (DELTA, octets(delta))
    parts: Parts = [first, (INTEGERS, octets(result.integers))]
    return parts if result.shared is None else [*parts, (SHARED, octets(result.shared))]


def octets(tensor: Tensor) -> memoryview:
    """The bytes of a float32 or int64 vector on the CPU, not a copy."""
    if sys.byteorder != "little":
        raise RunError("tensors travel as they lie in memory, little-endian: this machine is big-endian")
    if tensor.dim() != 1 or tensor.dtype not in (torch.float32, torch.int64):
        raise ValueError(f"a tensor of {tensor.dim()} dimensions, {tensor.dtype}, does not travel")
    array = np.ascontiguousarray(tensor.detach().numpy())
    return array.view(np.uint8).data if len(array) else memoryview(b"")


# ---- the peer's envelopes as messages ----

Bodies = Mapping[int, Tensor | bytearray]
"""The tensors and the payload of a body, by kind of part."""


def kind_of(envelope: pb.Envelope, allowed: frozenset[str]) -> str:
    """Which message an envelope holds; one that this side does not send is a violation."""
    kind: str | None = envelope.WhichOneof("message")
    if kind is None:
        raise Violation("an envelope without a message, or with one that this version does not know")
    if kind not in allowed:
        raise Violation(f"{kind} is not for this side to send")
    return kind


def announced(envelope: pb.Envelope, kind: str, known: Layout | None, limits: Limits) -> dict[int, int]:
    """The sizes of the parts that are to follow, in order, held against the layout and the limits.

    Nothing has been allocated when this raises `Violation`.
    """
    sizes = _sizes(envelope)
    if len(sizes) < len(envelope.parts):
        raise Violation(f"{kind} has two parts of one kind", "size")
    if not sizes and kind != "result" and kind != "assign":
        return {}
    if kind not in ("result", "assign", "fresh"):
        raise Violation(f"{kind} has a body, which only result, assign and fresh may have", "size")
    if sum(sizes.values()) > limits.body:
        said = sum(sizes.values())
        raise Violation(f"{kind} announces {said} bytes: at most {limits.body} are allowed", "size")
    first = (DELTA, PAYLOAD) if kind == "result" else (VALUES,)
    order = list(sizes)
    if len(order) not in (2, 3) or order[0] not in first or order[1:] not in ([INTEGERS], [INTEGERS, SHARED]):
        raise Violation(f"{kind} announces parts {order}: see the protocol for what it must have", "size")
    for part, size in sizes.items():
        if size % _WIDTH[part]:
            raise Violation(f"{kind} announces a part of {size} bytes, not a whole number of values", "size")
    if known is not None:
        _fits(sizes, kind, known, limits)
    return sizes


def _sizes(envelope: pb.Envelope) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for part in envelope.parts:
        sizes[part.kind] = part.bytes
    return sizes


def _fits(sizes: Mapping[int, int], kind: str, layout: Layout, limits: Limits) -> None:
    wanted: dict[int, int] = {
        VALUES: 4 * layout.values,
        DELTA: 4 * layout.values,
        INTEGERS: 8 * layout.integers,
        SHARED: 4 * layout.shared,
    }
    if kind != "result" and (SHARED in sizes) != bool(layout.shared):
        raise Violation(f"{kind} and its layout differ in whether a shared vector travels", "layout")
    for part, size in sizes.items():
        name = pb.Part.Kind.Name(pb.Part.Kind.ValueType(part)).lower()
        if part == PAYLOAD:
            most = min(limits.payload, 8 * layout.values + 4096)
            if size > most:
                raise Violation(f"{kind} announces a {name} of {size} bytes: at most {most} fit", "layout")
        elif size != wanted[part]:
            raise Violation(f"{kind} has {size} bytes of {name}: the model has {wanted[part]}", "layout")


def allocate(sizes: Mapping[int, int], rooms: Rooms) -> dict[int, Tensor | bytearray]:
    """Room for the parts of a body."""
    return {part: _room(part, size, rooms) for part, size in sizes.items()}


def _room(part: int, size: int, rooms: Rooms) -> Tensor | bytearray:
    if part == PAYLOAD:
        return bytearray(size)
    return (
        rooms.vector(size // 8, torch.int64) if part == INTEGERS else rooms.vector(size // 4, torch.float32)
    )


def told_layout(envelope: pb.Envelope, kind: str, limits: Limits) -> Layout | None:
    """The layout that an envelope brings, checked; none if it brings none."""
    if kind == "assign" and envelope.assign.HasField("layout"):
        return _checked(envelope.assign.layout, limits)
    if kind == "fresh" and envelope.fresh.HasField("layout"):
        return _checked(envelope.fresh.layout, limits)
    return None


def _checked(told: pb.Layout, limits: Limits) -> Layout:
    if len(told.entries) > limits.tensors:
        raise Violation(
            f"a model of {len(told.entries)} tensors: at most {limits.tensors} are allowed", "layout"
        )
    entries = tuple(_entry(entry) for entry in told.entries)
    if len({entry.name for entry in entries}) < len(entries):
        raise Violation("two tensors of the model have one name", "layout")
    layout = Layout(entries, count("shared", told.shared))
    if layout.nbytes > limits.body:
        said = f"a model of {layout.nbytes} bytes: at most {limits.body} are allowed"
        raise Violation(said, "layout")
    return layout


def _entry(told: pb.Entry) -> Entry:
    text("a tensor's name", told.name, 1000)
    if told.dtype not in _SECTIONS.get(told.section, ()):
        raise Violation(f"tensor {told.name!r}: section {told.section!r} with dtype {told.dtype!r}", "layout")
    if len(told.shape) > 32 or any(size > 1 << 40 for size in told.shape):
        raise Violation(f"tensor {told.name!r} has a shape that no model has", "layout")
    return Entry(told.name, tuple(told.shape), told.dtype, told.section)


def decode(envelope: pb.Envelope, kind: str, layout: Layout | None, bodies: Bodies) -> Message:
    """The message of an envelope whose kind, parts and layout have been checked, with its whole body."""
    match kind:
        case "assign":
            return _read_assign(envelope.assign, _model(layout, bodies))
        case "fresh":
            model = _model(layout, bodies) if bodies else None
            fresh = envelope.fresh
            task, version = count("task", fresh.task), count("version", fresh.version)
            return Fresh(task, version, count("clock", fresh.clock), model)
        case "result":
            return _read_result(envelope.result, bodies)
        case _:
            return _READ[kind](envelope)


def _model(layout: Layout | None, bodies: Bodies) -> Model:
    if layout is None:
        raise Violation("a model before its layout", "layout")
    vectors = {part: vector for part, vector in bodies.items() if isinstance(vector, Tensor)}
    return Model(layout, vectors[VALUES], vectors[INTEGERS], vectors.get(SHARED, torch.zeros(0)))


def _read_assign(said: pb.Assign, model: Model) -> Assign:
    return Assign(
        task=count("task", said.task),
        base=count("base", said.base),
        steps=count("steps", said.steps),
        seed=count("seed", said.seed),
        model=model,
        ask_after=count("ask_after", said.ask_after),
        lr_factor=not_negative("lr_factor", said.lr_factor),
        hold=said.hold,
    )


def _read_result(said: pb.Result, bodies: Bodies) -> Result:
    delta = bodies[DELTA] if DELTA in bodies else bodies[PAYLOAD]
    integers, shared = bodies[INTEGERS], bodies.get(SHARED)
    assert isinstance(integers, Tensor)
    assert shared is None or isinstance(shared, Tensor)
    return Result(
        task=count("task", said.task),
        steps=count("steps", said.steps),
        delta=delta if isinstance(delta, Tensor) else bytes(delta),
        integers=integers,
        metrics=metrics(said.metrics),
        lr=finite("lr", said.lr),
        shared=shared,
    )


def _read_hello(said: pb.Hello) -> Hello:
    labels = None
    if said.HasField("labels"):
        if len(said.labels.counts) > LABELS:
            raise Violation(f"{len(said.labels.counts)} labels: there may be {LABELS}")
        labels = tuple(count("labels", number) for number in said.labels.counts)
    return Hello(
        samples=count("samples", said.samples),
        steps_per_epoch=count("steps_per_epoch", said.steps_per_epoch),
        labels=labels,
        holds=count("holds", said.holds) if said.HasField("holds") else None,
        run=text("run", said.run, RUN),
    )


def _read_beat(said: pb.Beat) -> Beat:
    task = count("task", said.task) if said.HasField("task") else None
    return Beat(task, count("steps", said.steps))


def _read_welcome(said: pb.Welcome) -> Welcome:
    return Welcome(
        client=count("client", said.client),
        run=text("run", said.run, RUN),
        plan=json_object("plan", said.plan),
        lease=not_negative("lease", said.lease),
    )


def _read_may_send(said: pb.MaySend) -> MaySend:
    return MaySend(count("task", said.task), count("bits", said.bits) if said.HasField("bits") else None)


def _read_receipt(said: pb.Receipt) -> Receipt:
    return Receipt(count("task", said.task), said.accepted, text("reason", said.reason, REASON))


def _done(said: pb.Done) -> Done:
    return Done(count("task", said.task), count("steps", said.steps), metrics(said.metrics))


_READ: dict[str, Callable[[pb.Envelope], FromSite | FromServer]] = {
    "hello": lambda e: _read_hello(e.hello),
    "beat": lambda e: _read_beat(e.beat),
    "asks": lambda e: Asks(count("task", e.asks.task), count("steps", e.asks.steps)),
    "done": lambda e: _done(e.done),
    "failed": lambda e: Failed(count("task", e.failed.task), text("reason", e.failed.reason, REASON)),
    "bye": lambda e: Bye(text("reason", e.bye.reason, REASON)),
    "welcome": lambda e: _read_welcome(e.welcome),
    "refused": lambda e: Refused(text("reason", e.refused.reason, REASON), e.refused.final),
    "cut_short": lambda e: CutShort(count("task", e.cut_short.task)),
    "may_send": lambda e: _read_may_send(e.may_send),
    "forget": lambda e: Forget(count("task", e.forget.task), text("reason", e.forget.reason, REASON)),
    "receipt": lambda e: _read_receipt(e.receipt),
    "over": lambda e: Over(text("reason", e.over.reason, REASON)),
}
