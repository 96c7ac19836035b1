"""The bodies of messages: what parts they have, what a model's layout says of their sizes, room for them.

What a peer announces is held against the layout and the limits before memory is taken for it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from offbeat.core.model import Entry, Layout
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.fields import ProtocolError, count, text
from offbeat.net.wire.limits import Limits
from offbeat.vectors.pool import POOL

VALUES, INTEGERS, SHARED = pb.Part.VALUES, pb.Part.INTEGERS, pb.Part.SHARED
DELTA, PAYLOAD = pb.Part.DELTA, pb.Part.PAYLOAD
_WIDTH: dict[int, int] = {VALUES: 4, INTEGERS: 8, SHARED: 4, DELTA: 4, PAYLOAD: 1}
_SECTIONS = {
    "parameter": {"float32", "float16", "bfloat16"},
    "buffer": {"float32", "float16", "bfloat16", "float64"},
    "integer": {"int64", "int32", "int16", "int8", "uint8", "bool"},
}

Bodies = Mapping[int, Tensor | bytearray]
"""The tensors and the payload of a body, by kind of part."""


def announced(envelope: pb.Envelope, kind: str, known: Layout | None, limits: Limits) -> dict[int, int]:
    """The sizes of the parts that are to follow, in order, held against the layout and the limits.

    Nothing has been allocated when this raises `ProtocolError`.
    """
    sizes = _sizes(envelope)
    if len(sizes) < len(envelope.parts):
        raise ProtocolError(f"{kind} has two parts of one kind", "size")
    if not sizes and kind != "result" and kind != "assign":
        return {}
    if kind not in ("result", "assign", "fresh"):
        raise ProtocolError(f"{kind} has a body, which only result, assign and fresh may have", "size")
    if sum(sizes.values()) > limits.body:
        said = sum(sizes.values())
        raise ProtocolError(f"{kind} announces {said} bytes: at most {limits.body} are allowed", "size")
    first = (DELTA, PAYLOAD) if kind == "result" else (VALUES,)
    order = list(sizes)
    if len(order) not in (2, 3) or order[0] not in first or order[1:] not in ([INTEGERS], [INTEGERS, SHARED]):
        raise ProtocolError(f"{kind} announces parts {order}: see the protocol for what it must have", "size")
    for part, size in sizes.items():
        if size % _WIDTH[part]:
            raise ProtocolError(
                f"{kind} announces a part of {size} bytes, not a whole number of values", "size"
            )
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
        raise ProtocolError(f"{kind} and its layout differ in whether a shared vector travels", "layout")
    for part, size in sizes.items():
        name = pb.Part.Kind.Name(pb.Part.Kind.ValueType(part)).lower()
        if part == PAYLOAD:
            most = min(limits.payload, 8 * layout.values + 4096)
            if size > most:
                raise ProtocolError(
                    f"{kind} announces a {name} of {size} bytes: at most {most} fit", "layout"
                )
        elif size != wanted[part]:
            raise ProtocolError(f"{kind} has {size} bytes of {name}: the model has {wanted[part]}", "layout")


def allocate(sizes: Mapping[int, int]) -> dict[int, Tensor | bytearray]:
    """Room for the parts of a body."""
    return {part: _room(part, size) for part, size in sizes.items()}


def _room(part: int, size: int) -> Tensor | bytearray:
    if part == PAYLOAD:
        return bytearray(size)
    dtype = torch.int64 if part == INTEGERS else torch.float32
    return POOL.vector(size // dtype.itemsize, dtype)


def told_layout(envelope: pb.Envelope, kind: str, limits: Limits) -> Layout | None:
    """The layout that an envelope brings, checked; none if it brings none."""
    if kind == "assign" and envelope.assign.HasField("layout"):
        return _checked(envelope.assign.layout, limits)
    if kind == "fresh" and envelope.fresh.HasField("layout"):
        return _checked(envelope.fresh.layout, limits)
    return None


def _checked(told: pb.Layout, limits: Limits) -> Layout:
    if len(told.entries) > limits.tensors:
        raise ProtocolError(
            f"a model of {len(told.entries)} tensors: at most {limits.tensors} are allowed", "layout"
        )
    entries = tuple(_entry(entry) for entry in told.entries)
    if len({entry.name for entry in entries}) < len(entries):
        raise ProtocolError("two tensors of the model have one name", "layout")
    layout = Layout(entries, count("shared", told.shared))
    if layout.nbytes > limits.body:
        said = f"a model of {layout.nbytes} bytes: at most {limits.body} are allowed"
        raise ProtocolError(said, "layout")
    return layout


def _entry(told: pb.Entry) -> Entry:
    text("a tensor's name", told.name, 1000)
    if told.dtype not in _SECTIONS.get(told.section, ()):
        raise ProtocolError(
            f"tensor {told.name!r}: section {told.section!r} with dtype {told.dtype!r}", "layout"
        )
    if len(told.shape) > 32 or any(size > 1 << 40 for size in told.shape):
        raise ProtocolError(f"tensor {told.name!r} has a shape that no model has", "layout")
    return Entry(told.name, tuple(told.shape), told.dtype, told.section)
