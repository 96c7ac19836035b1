"""The bodies of messages: their parts, the sizes that a model's layout gives them, their memory.

The sizes that a peer announces are checked against the layout and the limits before memory is allocated.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from offbeat.core.layout import Entry, Layout
from offbeat.core.number_types import NumberType
from offbeat.net.transport import ProtocolError
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.limits import Limits
from offbeat.vectors.memory_pool import POOL

VALUES, INTEGERS, SHARED = pb.Part.VALUES, pb.Part.INTEGERS, pb.Part.SHARED
DELTA, PAYLOAD = pb.Part.DELTA, pb.Part.PAYLOAD
MASKED, SUM = pb.Part.MASKED, pb.Part.SUM
TYPES: Mapping[pb.Part.Kind, pb.Part.Type] = {
    VALUES: pb.Part.FLOAT32, SHARED: pb.Part.FLOAT32, DELTA: pb.Part.FLOAT32, INTEGERS: pb.Part.INT64,
    PAYLOAD: pb.Part.BYTES, MASKED: pb.Part.UINT32, SUM: pb.Part.UINT32,
}  # fmt: skip
"""The types of the parts' values. A model's values may have other ones."""
NUMBERS: Mapping[NumberType, pb.Part.Type] = {
    "float32": pb.Part.FLOAT32, "float16": pb.Part.FLOAT16, "bfloat16": pb.Part.BFLOAT16,
}  # fmt: skip
"""The types of a model's values."""
_DTYPES = {
    pb.Part.FLOAT32: torch.float32, pb.Part.FLOAT16: torch.float16, pb.Part.BFLOAT16: torch.bfloat16,
    pb.Part.INT64: torch.int64, pb.Part.UINT32: torch.int32, pb.Part.BYTES: torch.uint8,
}  # fmt: skip
_ALONE = ([MASKED], [SUM])
BODIES = {
    "update_submission": ([DELTA], [PAYLOAD], [MASKED]),
    "unmask_share": ([SUM],),
    "task_assignment": ([VALUES],),
    "model_response": ([VALUES],),
    "evaluation_request": ([VALUES],),
    "run_finished": ([VALUES],),
}
"""The messages with a body, and the types of its first part."""
_SECTIONS = {
    "parameter": {"float32", "float16", "bfloat16"},
    "buffer": {"float32", "float16", "bfloat16", "float64"},
    "integer": {"int64", "int32", "int16", "int8", "uint8", "bool"},
}

NAME = 1000

Bodies = Mapping[int, Tensor | bytearray]
"""The tensors and the payload of a body, by kind of part."""


def announced(
    kind: str, parts: Sequence[pb.Part], layout: Layout | None, limits: Limits
) -> dict[int, pb.Part]:
    """The parts that are to follow, in order, within the layout and the limits.

    Raises `ProtocolError`; nothing has been allocated then.
    """
    found: dict[int, pb.Part] = {part.kind: part for part in parts}
    if len(found) < len(parts):
        raise ProtocolError(f"{kind} has two parts of one kind", "size")
    for part in parts:
        allowed = NUMBERS.values() if part.kind == VALUES else (TYPES.get(part.kind, part.type),)
        if part.type not in allowed:
            raise ProtocolError(
                f"{kind} has {_name(part.kind)} of type {part.type}: it must be {TYPES[part.kind]}"
            )
    if not found and kind not in ("update_submission", "task_assignment", "evaluation_request"):
        return {}
    if kind not in BODIES:
        raise ProtocolError(f"{kind} has a body, which only {', '.join(BODIES)} may have", "size")
    if (total := sum(part.bytes for part in parts)) > limits.body:
        raise ProtocolError(f"{kind} announces {total} bytes: at most {limits.body} are allowed", "size")
    order = list(found)
    rest = [[]] if order[:1] in _ALONE else [[INTEGERS], [INTEGERS, SHARED]]
    if order[:1] not in BODIES[kind] or order[1:] not in rest:
        raise ProtocolError(f"{kind} announces parts {order}: see the protocol for what it must have", "size")
    if any(part.bytes % _DTYPES[part.type].itemsize for part in parts):
        raise ProtocolError(f"{kind} announces a part that is not a whole number of values", "size")
    if layout is not None:
        _fits(found, kind, layout, limits)
    return found


def _fits(parts: Mapping[int, pb.Part], kind: str, layout: Layout, limits: Limits) -> None:
    values, shared = layout.values, layout.shared
    wanted: dict[int, int] = {
        VALUES: values, DELTA: values, INTEGERS: layout.integers, SHARED: shared,
        MASKED: layout.parameters, SUM: layout.parameters,
    }  # fmt: skip
    if kind not in ("update_submission", "unmask_share") and (SHARED in parts) != bool(shared):
        raise ProtocolError(f"{kind} and its layout differ in whether a shared vector travels", "layout")
    for part, told in parts.items():
        if part == PAYLOAD:
            most = min(limits.payload, 8 * values + 4096)
            if told.bytes > most:
                what = f"{kind} announces a {_name(part)} of {told.bytes} bytes"
                raise ProtocolError(f"{what}: at most {most} fit", "layout")
        elif told.bytes != (has := wanted[part] * _DTYPES[told.type].itemsize):
            what = f"{kind} has {told.bytes} bytes of {_name(part)}"
            raise ProtocolError(f"{what}: the model has {has}", "layout")


def _name(part: int) -> str:
    return pb.Part.Kind.Name(pb.Part.Kind.ValueType(part)).lower()


def allocate(part: pb.Part) -> Tensor | bytearray:
    """Memory for a part of a body."""
    dtype = _DTYPES[part.type]
    if dtype is torch.uint8:
        return bytearray(part.bytes)
    size = part.bytes // dtype.itemsize
    # NumPy, of which the pool's memory is, has no bfloat16.
    return POOL.vector(size, torch.int16).view(dtype) if dtype.itemsize == 2 else POOL.vector(size, dtype)


def read_layout(message: pb.Layout, limits: Limits) -> Layout:
    """Read a layout that a peer has sent. Raises `ProtocolError`."""
    if len(message.entries) > limits.tensors:
        raise ProtocolError(
            f"a model of {len(message.entries)} tensors: at most {limits.tensors} are allowed", "layout"
        )
    entries = tuple(_entry(entry) for entry in message.entries)
    if len({entry.name for entry in entries}) < len(entries):
        raise ProtocolError("two tensors of the model have one name", "layout")
    layout = Layout(entries, message.shared)
    if layout.nbytes > limits.body:
        raise ProtocolError(f"a model of {layout.nbytes} bytes: at most {limits.body} are allowed", "layout")
    return layout


def _entry(message: pb.Entry) -> Entry:
    if len(message.name) > NAME:
        raise ProtocolError(f"a tensor's name has {len(message.name)} characters: at most {NAME} are allowed")
    if message.dtype not in _SECTIONS.get(message.section, ()):
        raise ProtocolError(
            f"tensor {message.name!r}: section {message.section!r} with dtype {message.dtype!r}", "layout"
        )
    if len(message.shape) > 32 or any(size > 1 << 40 for size in message.shape):
        raise ProtocolError(f"tensor {message.name!r} has an impossible shape", "layout")
    return Entry(message.name, tuple(message.shape), message.dtype, message.section)


def between(parts: Sequence[memoryview], start: int, end: int) -> Iterator[memoryview]:
    """The bytes of a body from `start` to `end`, piece by piece."""
    for part in parts:
        if start < len(part) and end > 0:
            yield part[max(start, 0) : end]
        start, end = start - len(part), end - len(part)
