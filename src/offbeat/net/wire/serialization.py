"""Messages as protobuf envelopes with bodies of tensors, and back.

A message and its protobuf message have the same name and the same fields; tensors are the body. Every field
of a peer is checked here: one that is out of range is a `ProtocolError`.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, get_args

import msgspec
import numpy as np
import torch
from google.protobuf.descriptor import FieldDescriptor
from torch import Tensor

from offbeat.core.errors import RunError, UsageError
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.net.messages import (
    LONGEST_METRIC,
    LONGEST_REASON,
    MOST_METRICS,
    FromServer,
    FromSite,
    Message,
    UpdateSubmission,
    shorten,
)
from offbeat.net.transport import ProtocolError
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.bodies import DELTA, INTEGERS, MASKED, PAYLOAD, SHARED, SUM, VALUES, Bodies
from offbeat.secure.committee import SIGNATURE_BYTES, CommitteeMember
from offbeat.secure.messages import UnmaskEntry, UnmaskShare

RUN, LABELS, DEPTH, TOKEN = 200, 100_000, 32, 256
DIGEST, BOX, HELPERS, ENTRIES = 32, 8192, 9, 4096
METRICS: Mapping[str, tuple[int, int]] = {
    "update_ready": (MOST_METRICS, LONGEST_METRIC),
    "update_submission": (MOST_METRICS, LONGEST_METRIC),
    "evaluation_result": (100, 100),
}
"""Metrics of a message at most, and characters of the name of one."""
MOST = (1 << 63) - 1


def _kind(message: type[Message]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", message.__name__).lower()


MESSAGES: Mapping[str, type[Message]] = {_kind(message): message for message in get_args(Message)}
"""The messages by their kind: the name of their field in an envelope."""
FROM_SITE = frozenset(map(_kind, get_args(FromSite)))
FROM_SERVER = frozenset(map(_kind, get_args(FromServer)))
_KINDS = {message: kind for kind, message in MESSAGES.items()}


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
    values = {name: convert(getattr(message, name)) for name, convert in _TO_FIELDS[kind]}
    model: Model | None = getattr(message, "model", None)
    if model is not None and model.layout != peer_layout:
        values["layout"] = _layout(model.layout)
    parts = _parts(message if isinstance(message, UpdateSubmission | UnmaskShare) else model)
    content = getattr(pb, type(message).__name__)(**values)
    sizes = [pb.Part(kind=part, bytes=len(octets)) for part, octets in parts]
    return OutgoingMessage(pb.Envelope(**{kind: content}, parts=sizes), tuple(octets for _, octets in parts))


def _to_labels(labels: tuple[int, ...] | None) -> pb.Labels | None:
    return None if labels is None else pb.Labels(counts=labels)


def _unchanged(value: Any) -> Any:
    return value


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
        first, shared = (VALUES, octets(source.values)), source.shared if source.layout.shared else None
    elif isinstance(source.delta, bytes):
        first, shared = (PAYLOAD, memoryview(source.delta)), source.shared
    else:
        first, shared = (DELTA, octets(source.delta)), source.shared
    parts = [first, (INTEGERS, octets(source.integers))]
    return parts if shared is None else [*parts, (SHARED, octets(shared))]


def octets(tensor: Tensor) -> memoryview:
    """The bytes of a float32, int32 or int64 vector on the CPU, not a copy."""
    if sys.byteorder != "little":
        raise RunError("tensors are sent as they are in memory, little-endian: this machine is big-endian")
    if tensor.dim() != 1 or tensor.dtype not in (torch.float32, torch.int32, torch.int64):
        raise ValueError(f"a tensor of {tensor.dim()} dimensions, {tensor.dtype}, cannot be sent")
    if not tensor.numel():
        return memoryview(b"")
    return np.ascontiguousarray(tensor.detach().numpy()).view(np.uint8).data


# ---- from a peer ----


def kind_of(envelope: pb.Envelope, allowed: frozenset[str]) -> str:
    """The kind of the message in an envelope; raises `ProtocolError` for one that this peer may not send."""
    kind: str | None = envelope.WhichOneof("message")
    if kind is None:
        raise ProtocolError("an envelope without a message, or with one that this version does not know")
    if kind not in allowed:
        raise ProtocolError(f"{kind} is not for this side to send")
    return kind


def check_metric_names(envelope: pb.Envelope, kind: str) -> None:
    """Raises `ProtocolError` for metrics of too many or too long names; nothing has been allocated then."""
    if kind in METRICS:
        (most, longest), names = METRICS[kind], getattr(envelope, kind).metrics
        if len(names) > most:
            raise ProtocolError(f"{kind} has {len(names)} metrics: at most {most} are allowed", "metrics")
        if (found := max(map(len, names), default=0)) > longest:
            raise ProtocolError(
                f"{kind} has a metric with a name of {found} characters: at most {longest} are allowed",
                "metrics",
            )


def deserialize(envelope: pb.Envelope, kind: str, layout: Layout | None, bodies: Bodies) -> Message:
    """The message of an envelope whose kind, parts and layout have been checked, with its whole body."""
    told = getattr(envelope, kind)
    values: dict[str, Any] = {
        name: None if optional and not told.HasField(name) else check(name, getattr(told, name))
        for name, optional, check in _FROM_FIELDS[kind]
    }
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
    return Model(layout, vectors[VALUES], vectors[INTEGERS], vectors.get(SHARED, torch.zeros(0)))


def count(name: str, value: int) -> int:
    """A number from 0 to 2^63 - 1."""
    if not 0 <= value <= MOST:
        raise ProtocolError(f"{name} = {value}: it must be from 0 to {MOST}")
    return value


def text(name: str, value: str, most: int) -> str:
    """A text of at most `most` characters."""
    if len(value) > most:
        raise ProtocolError(f"{name} has {len(value)} characters: at most {most} are allowed")
    return value


def _not_negative(name: str, value: float) -> float:
    if not 0 <= value < inf:
        raise ProtocolError(f"{name} = {value}: it must be finite and not negative")
    return value


def _labels(name: str, value: pb.Labels) -> tuple[int, ...]:
    if len(value.counts) > LABELS:
        raise ProtocolError(f"{len(value.counts)} labels: at most {LABELS} are allowed")
    return tuple(count(name, number) for number in value.counts)


def _metrics(_: str, values: Mapping[str, float]) -> dict[str, float]:
    """Named numbers. They may be NaN: the server refuses such an update, and the connection goes on."""
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


def octet_string(name: str, value: bytes, most: int) -> bytes:
    """A byte string of at most `most` bytes."""
    if len(value) > most:
        raise ProtocolError(f"{name} has {len(value)} bytes: at most {most} are allowed")
    return value


def _listed(most: int, check: Callable[[str, Any], Any]) -> Callable[[str, Any], tuple[Any, ...]]:
    """The check of a list of at most `most` values."""

    def checked(name: str, values: Any) -> tuple[Any, ...]:
        if len(values) > most:
            raise ProtocolError(f"{len(values)} {name}: at most {most} are allowed")
        return tuple(check(name, value) for value in values)

    return checked


def _member(_: str, told: pb.CommitteeMember) -> CommitteeMember:
    keys = [octet_string(name, getattr(told, name), DIGEST) for name in ("public_key", "verify_key")]
    return CommitteeMember(text("name", told.name, RUN), *keys)


def _entry(_: str, told: pb.UnmaskEntry) -> UnmaskEntry:
    numbers = [count(name, getattr(told, name)) for name in ("task", "client", "weight")]
    site, box = text("site", told.site, RUN), octet_string("box", told.box, HELPERS * BOX)
    return UnmaskEntry(numbers[0], numbers[1], site, numbers[2], box)


_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "reason": shorten,
    "labels": _to_labels,
    "plan": lambda plan: json.dumps(plan, allow_nan=False),
    "helpers": lambda own: [
        pb.CommitteeMember(name=h.name, public_key=h.public_key, verify_key=h.verify_key) for h in own
    ],
    "entries": lambda own: [
        pb.UnmaskEntry(task=e.task, client=e.client, site=e.site, weight=e.weight, box=e.box) for e in own
    ],
}
_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "reason": lambda name, value: text(name, value, LONGEST_REASON),
    "run": lambda name, value: text(name, value, RUN),
    "labels": _labels,
    "metrics": _metrics,
    "plan": _json_object,
    "lease": _not_negative,
    "lr_factor": _not_negative,
    "site": lambda name, value: text(name, value, RUN),
    "token": lambda name, value: text(name, value, TOKEN),
    **dict.fromkeys(
        ("public_key", "committee", "manifest", "verify_key"),
        lambda name, value: octet_string(name, value, DIGEST),
    ),
    "boxes": _listed(HELPERS, lambda name, value: octet_string(name, value, BOX)),
    "helpers": _listed(HELPERS, _member),
    "entries": _listed(ENTRIES, _entry),
    "groups": _listed(ENTRIES, count),
    "vote": lambda name, value: octet_string(name, value, SIGNATURE_BYTES),
    "votes": _listed(HELPERS, lambda name, value: octet_string(name, value, SIGNATURE_BYTES)),
    "sums": _listed(ENTRIES, lambda name, value: octet_string(name, value, DIGEST)),
    "tasks": _listed(ENTRIES, count),
}


def _check(field: FieldDescriptor) -> Callable[[str, Any], Any]:
    otherwise = count if field.type == FieldDescriptor.TYPE_UINT64 else lambda _, value: value
    return _CHECKS.get(field.name, otherwise)


_FIELDS: Mapping[str, list[FieldDescriptor]] = {
    kind: [field for field in getattr(pb, message.__name__).DESCRIPTOR.fields if field.name != "layout"]
    for kind, message in MESSAGES.items()
}
_TO_FIELDS = {k: [(f.name, _CONVERSIONS.get(f.name, _unchanged)) for f in fs] for k, fs in _FIELDS.items()}
_FROM_FIELDS = {k: [(f.name, f.has_presence, _check(f)) for f in fs] for k, fs in _FIELDS.items()}
