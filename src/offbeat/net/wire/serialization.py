"""Messages as protobuf envelopes with bodies of tensors, and back.

A message and its protobuf message have the same name and the same fields; tensors are the body. The
declaration of a field says how its values travel and what a peer may send. Everything else is a
`ProtocolError`.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import msgspec
import msgspec.inspect as types
import numpy as np
import torch
from torch import Tensor

from offbeat.core.errors import RunError, UsageError
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.wire_types import DTYPES
from offbeat.net.messages import Message, UpdateSubmission, shorten
from offbeat.net.transport import ProtocolError
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.bodies import (
    DELTA,
    INTEGERS,
    MASKED,
    NUMBERS,
    PAYLOAD,
    SHARED,
    SUM,
    TYPES,
    VALUES,
    Bodies,
)
from offbeat.net.wire.fields import MESSAGES, fields_of, optional
from offbeat.secure.bounds import LONGEST_REASON
from offbeat.secure.messages import UnmaskShare

MOST = (1 << 63) - 1
DEPTH = 32
"""Levels of a JSON object, at most."""
_KINDS = {message: kind for kind, message in MESSAGES.items()}


# ---- to a peer ----


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """The envelope of a message, and the bytes of its body, which are those of the tensors."""

    envelope: pb.Envelope
    body: tuple[memoryview, ...] = ()


def serialize(message: Message, peer_layout: Layout | None = None) -> OutgoingMessage:
    """The envelope and body of a message; `peer_layout` is the layout that the peer has received before.

    Raises `ValueError` for a number outside the range of the protocol, such as one below 0, and `TypeError`
    for a value that is not a message.
    """
    if (kind := _KINDS.get(type(message))) is None:
        raise TypeError(f"{type(message).__name__} is not a message")
    content = _SENT[kind](message)
    model: Model | None = getattr(message, "model", None)
    if model is not None and model.layout != peer_layout:
        content.layout.CopyFrom(_layout(model.layout))
    parts = _parts(message if isinstance(message, UpdateSubmission | UnmaskShare) else model)
    number = None if model is None else NUMBERS[model.number]
    sizes = [
        pb.Part(kind=part, type=number if part == VALUES else TYPES[part], bytes=len(octets))
        for part, octets in parts
    ]
    envelope = pb.Envelope(**{kind: content}, body=pb.Body(parts=sizes) if parts else None)
    return OutgoingMessage(envelope, tuple(octets for _, octets in parts))


def _sender(told: types.Type) -> Callable[[Any], Any]:
    """The function that makes a value of protobuf of one of ours."""
    match told:
        case types.StrType(max_length=most) if most == LONGEST_REASON:
            return shorten
        case types.VarTupleType(item_type=types.DataclassType(cls=cls)):
            return partial(_send_structs, _struct_sender(cls))
        case types.DictType(value_type=types.AnyType()):
            return partial(json.dumps, allow_nan=False)
        case _:
            return _unchanged


def _unchanged(value: Any) -> Any:
    return value


def _send_structs(send: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    return [send(value) for value in values]


def _struct_sender(struct: type) -> Callable[[Any], Any]:
    made = getattr(pb, struct.__name__)
    senders = [(name, _sender(told)) for name, told in fields_of(struct).items()]
    return lambda value: made(**{name: send(getattr(value, name)) for name, send in senders})


def _layout(layout: Layout) -> pb.Layout:
    entries = [pb.Entry(name=e.name, shape=e.shape, dtype=e.dtype, section=e.section) for e in layout.entries]
    return pb.Layout(entries=entries, shared=layout.shared)


def _parts(source: UpdateSubmission | UnmaskShare | Model | None) -> list[tuple[pb.Part.Kind, memoryview]]:
    """The parts of a body, in their order."""
    if source is None:
        return []
    if isinstance(source, UnmaskShare):
        return [(SUM, octets(torch.from_numpy(source.total.view(np.int32))))] if len(source.total) else []
    if isinstance(source, UpdateSubmission) and source.boxes:
        assert isinstance(source.delta, Tensor)
        return [(MASKED, octets(source.delta))]
    if isinstance(source, Model):
        values = source.values.to(DTYPES[source.number])
        first, shared = (VALUES, octets(values)), source.shared if source.layout.shared else None
    elif isinstance(source.delta, bytes):
        first, shared = (PAYLOAD, memoryview(source.delta)), source.shared
    else:
        first, shared = (DELTA, octets(source.delta)), source.shared
    parts = [first, (INTEGERS, octets(source.integers))]
    return parts if shared is None else [*parts, (SHARED, octets(shared))]


def octets(tensor: Tensor) -> memoryview:
    """The bytes of a vector of values or whole numbers on the CPU, not a copy."""
    if sys.byteorder != "little":
        raise RunError("tensors are sent as they are in memory, little-endian: this machine is big-endian")
    if tensor.dim() != 1 or tensor.dtype not in (*DTYPES.values(), torch.int32, torch.int64):
        raise ValueError(f"a tensor of {tensor.dim()} dimensions, {tensor.dtype}, cannot be sent")
    if not tensor.numel():
        return memoryview(b"")
    return tensor.detach().contiguous().view(torch.uint8).numpy().data


# ---- from a peer ----


def kind_of(envelope: pb.Envelope, allowed: frozenset[str]) -> str:
    """The kind of the message in an envelope; raises `ProtocolError` for one that this peer may not send."""
    kind: str | None = envelope.WhichOneof("message")
    if kind is None:
        raise ProtocolError("an envelope without a message, or with one that this version does not know")
    if kind not in allowed:
        raise ProtocolError(f"{kind} is not for this side to send")
    return kind


def read_fields(kind: str, content: Any) -> dict[str, Any]:
    """The fields of a message, without its tensors. Raises `ProtocolError` for one that is out of range."""
    return _READ[kind](kind, content)


def deserialize(kind: str, fields: dict[str, Any], layout: Layout | None, bodies: Bodies) -> Message:
    """The message of fields and parts that have been checked, with its whole body."""
    values = dict(fields)
    if kind in ("task_assignment", "evaluation_request") or (
        kind in ("model_response", "run_finished") and bodies
    ):
        values["model"] = _model(layout, bodies)
    elif kind == "unmask_share":
        values["total"] = _words(bodies.get(SUM))
    elif kind == "update_submission" and MASKED in bodies:
        values["delta"], values["integers"] = bodies[MASKED], torch.zeros(0, dtype=torch.int64)
    elif kind == "update_submission":
        delta = bodies[DELTA] if DELTA in bodies else bodies[PAYLOAD]
        values["delta"] = delta if isinstance(delta, Tensor) else bytes(delta)
        values["integers"], values["shared"] = bodies[INTEGERS], bodies.get(SHARED)
    try:
        return MESSAGES[kind](**values)
    except UsageError as error:
        # A committee that is not valid raises this.
        raise ProtocolError(str(error)) from None


def _words(vector: Tensor | bytearray | None) -> Any:
    return vector.numpy().view(np.uint32) if isinstance(vector, Tensor) else np.zeros(0, np.uint32)


def _model(layout: Layout | None, bodies: Bodies) -> Model:
    if layout is None:
        raise ProtocolError("a model before its layout", "layout")
    vectors = {part: vector for part, vector in bodies.items() if isinstance(vector, Tensor)}
    values, shared = vectors[VALUES], vectors.get(SHARED, torch.zeros(0))
    number = next(name for name, dtype in DTYPES.items() if dtype is values.dtype)
    return Model(layout, values.to(torch.float32), vectors[INTEGERS], shared, number)


def _reader(told: types.Type) -> Callable[[str, Any], Any]:
    """The function that checks a value of protobuf, and makes ours of it."""
    match told:
        case types.IntType():
            return count
        case types.FloatType(ge=0):
            return _not_negative
        case types.StrType(max_length=int(most)):
            return partial(_within, most, "characters")
        case types.BytesType(max_length=int(most)):
            return partial(_within, most, "bytes")
        case types.VarTupleType(item_type=item, max_length=int(most)):
            return partial(_list, most, _reader(item))
        case types.DictType(value_type=types.AnyType()):
            return _json_object
        case types.DictType(key_type=types.StrType(max_length=int(longest)), max_length=int(most)):
            return partial(_metrics, most, longest)
        case types.DataclassType(cls=cls):
            return partial(_struct, cls, _struct_reader(cls))
        case types.BoolType() | types.FloatType(ge=None):
            return lambda _, value: value
        case _:
            raise TypeError(f"a field of a message is a {told}: it has no bound, or no way to travel")


def _struct_reader(struct: type) -> Callable[[str, Any], dict[str, Any]]:
    told = fields_of(struct).items()
    readers = [(name, optional(each) is not None, _reader(optional(each) or each)) for name, each in told]

    def read(kind: str, value: Any) -> dict[str, Any]:
        return {
            name: None
            if absent and not value.HasField(name)
            else check(f"{kind}.{name}", getattr(value, name))
            for name, absent, check in readers
        }

    return read


def _struct(struct: type, read: Callable[[str, Any], dict[str, Any]], name: str, value: Any) -> Any:
    return struct(**read(name, value))


def count(name: str, value: int) -> int:
    """A number from 0 to 2^63 - 1."""
    if not 0 <= value <= MOST:
        raise ProtocolError(f"{name} = {value}: it must be from 0 to {MOST}")
    return value


def _not_negative(name: str, value: float) -> float:
    if not 0 <= value < inf:
        raise ProtocolError(f"{name} = {value}: it must be finite and not negative")
    return value


def _within(most: int, unit: str, name: str, value: Any) -> Any:
    if len(value) > most:
        raise ProtocolError(f"{name} has {len(value)} {unit}: at most {most} are allowed")
    return value


def _list(most: int, read: Callable[[str, Any], Any], name: str, values: Any) -> tuple[Any, ...]:
    return tuple(read(name, value) for value in _within(most, "entries", name, values))


def _metrics(most: int, longest: int, name: str, values: Mapping[str, float]) -> dict[str, float]:
    """Named numbers. They may be NaN: the server refuses such an update, and the connection goes on."""
    if len(values) > most:
        raise ProtocolError(f"{name} has {len(values)} metrics: at most {most} are allowed", "metrics")
    if (found := max(map(len, values), default=0)) > longest:
        reason = f"{name} has a metric with a name of {found} characters: at most {longest} are allowed"
        raise ProtocolError(reason, "metrics")
    return dict(sorted(values.items()))


def _json_object(name: str, value: str) -> dict[str, Any]:
    """A JSON object of finite numbers, nested at most `DEPTH` deep."""
    try:
        parsed = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"{name} is not JSON of finite numbers: {type(error).__name__}") from None
    if not isinstance(parsed, dict):
        raise ProtocolError(f"{name} is not a JSON object")
    level: list[Any] = [parsed]
    for _ in range(DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return parsed
    raise ProtocolError(f"{name} is nested deeper than {DEPTH}")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


_SENT = {kind: _struct_sender(message) for kind, message in MESSAGES.items()}
_READ = {kind: _struct_reader(message) for kind, message in MESSAGES.items()}
