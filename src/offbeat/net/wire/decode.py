"""The peer's envelopes as messages; every field that comes from the peer is checked here."""

from collections.abc import Callable

import torch
from torch import Tensor

from offbeat.core.model import Layout, Model
from offbeat.net import messages as m
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.bodies import DELTA, INTEGERS, PAYLOAD, SHARED, VALUES, Bodies
from offbeat.net.wire.fields import (
    LABELS,
    REASON,
    RUN,
    ProtocolError,
    count,
    json_object,
    metrics,
    not_negative,
    text,
)

FROM_SITE = frozenset({"hello", "beat", "asks", "done", "result", "failed", "bye"})
FROM_SERVER = frozenset({"welcome", "refused", "beat", "assign", "fresh", "cut_short", "may_send", "forget",
                         "receipt", "over"})  # fmt: skip


def kind_of(envelope: pb.Envelope, allowed: frozenset[str]) -> str:
    """Which message an envelope holds; one that this side does not send is a violation."""
    kind: str | None = envelope.WhichOneof("message")
    if kind is None:
        raise ProtocolError("an envelope without a message, or with one that this version does not know")
    if kind not in allowed:
        raise ProtocolError(f"{kind} is not for this side to send")
    return kind


def decode(envelope: pb.Envelope, kind: str, layout: Layout | None, bodies: Bodies) -> m.Message:
    """The message of an envelope whose kind, parts and layout have been checked, with its whole body."""
    match kind:
        case "assign":
            return _read_assign(envelope.assign, _model(layout, bodies))
        case "fresh":
            model = _model(layout, bodies) if bodies else None
            fresh = envelope.fresh
            task, version = count("task", fresh.task), count("version", fresh.version)
            return m.ModelResponse(task, version, count("clock", fresh.clock), model)
        case "result":
            return _read_result(envelope.result, bodies)
        case _:
            return _READ[kind](envelope)


def _model(layout: Layout | None, bodies: Bodies) -> Model:
    if layout is None:
        raise ProtocolError("a model before its layout", "layout")
    vectors = {part: vector for part, vector in bodies.items() if isinstance(vector, Tensor)}
    return Model(layout, vectors[VALUES], vectors[INTEGERS], vectors.get(SHARED, torch.zeros(0)))


def _read_assign(said: pb.Assign, model: Model) -> m.TaskAssignment:
    return m.TaskAssignment(
        task=count("task", said.task),
        base=count("base", said.base),
        steps=count("steps", said.steps),
        seed=count("seed", said.seed),
        model=model,
        ask_after=count("ask_after", said.ask_after),
        lr_factor=not_negative("lr_factor", said.lr_factor),
        hold=said.hold,
    )


def _read_result(said: pb.Result, bodies: Bodies) -> m.UpdateSubmission:
    delta = bodies[DELTA] if DELTA in bodies else bodies[PAYLOAD]
    integers, shared = bodies[INTEGERS], bodies.get(SHARED)
    assert isinstance(integers, Tensor)
    assert shared is None or isinstance(shared, Tensor)
    return m.UpdateSubmission(
        task=count("task", said.task),
        steps=count("steps", said.steps),
        delta=delta if isinstance(delta, Tensor) else bytes(delta),
        integers=integers,
        metrics=metrics(said.metrics),
        lr=said.lr,
        shared=shared,
    )


def _read_hello(said: pb.Hello) -> m.Register:
    labels = None
    if said.HasField("labels"):
        if len(said.labels.counts) > LABELS:
            raise ProtocolError(f"{len(said.labels.counts)} labels: there may be {LABELS}")
        labels = tuple(count("labels", number) for number in said.labels.counts)
    return m.Register(
        samples=count("samples", said.samples),
        steps_per_epoch=count("steps_per_epoch", said.steps_per_epoch),
        labels=labels,
        holds=count("holds", said.holds) if said.HasField("holds") else None,
        run=text("run", said.run, RUN),
    )


def _read_beat(said: pb.Beat) -> m.Heartbeat:
    task = count("task", said.task) if said.HasField("task") else None
    return m.Heartbeat(task, count("steps", said.steps))


def _read_welcome(said: pb.Welcome) -> m.Registered:
    return m.Registered(
        client=count("client", said.client),
        run=text("run", said.run, RUN),
        plan=json_object("plan", said.plan),
        lease=not_negative("lease", said.lease),
    )


def _read_may_send(said: pb.MaySend) -> m.UploadGrant:
    return m.UploadGrant(
        count("task", said.task), count("bits", said.bits) if said.HasField("bits") else None
    )


def _read_receipt(said: pb.Receipt) -> m.UpdateAck:
    return m.UpdateAck(count("task", said.task), said.accepted, text("reason", said.reason, REASON))


def _done(said: pb.Done) -> m.UpdateReady:
    return m.UpdateReady(count("task", said.task), count("steps", said.steps), metrics(said.metrics))


_READ: dict[str, Callable[[pb.Envelope], m.FromSite | m.FromServer]] = {
    "hello": lambda e: _read_hello(e.hello),
    "beat": lambda e: _read_beat(e.beat),
    "asks": lambda e: m.ModelRequest(count("task", e.asks.task), count("steps", e.asks.steps)),
    "done": lambda e: _done(e.done),
    "failed": lambda e: m.TaskFailed(count("task", e.failed.task), text("reason", e.failed.reason, REASON)),
    "bye": lambda e: m.Leave(text("reason", e.bye.reason, REASON)),
    "welcome": lambda e: _read_welcome(e.welcome),
    "refused": lambda e: m.Rejected(text("reason", e.refused.reason, REASON), e.refused.final),
    "cut_short": lambda e: m.TaskRecall(count("task", e.cut_short.task)),
    "may_send": lambda e: _read_may_send(e.may_send),
    "forget": lambda e: m.TaskCancel(count("task", e.forget.task), text("reason", e.forget.reason, REASON)),
    "receipt": lambda e: _read_receipt(e.receipt),
    "over": lambda e: m.RunFinished(text("reason", e.over.reason, REASON)),
}
