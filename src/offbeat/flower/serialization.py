"""What one Flower message carries: a head of plain JSON values, and some of the messages of `net.messages`.

Numbers and texts are one JSON text in a config record, tensors are raw little-endian bytes in an array
record. Who opens a letter trusts nothing in it: types and sizes are checked, and no code is in it.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from math import prod
from types import UnionType
from typing import Any, cast, get_args, get_type_hints

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from torch import Tensor

from offbeat.core.model import Layout, Model, Tensors
from offbeat.core.validation import format_error
from offbeat.net.messages import (
    Leave,
    Message,
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

TO_SITES: tuple[type[Message], ...] = (TaskAssignment, ModelResponse, TaskCancel, UpdateAck)
TO_SERVER: tuple[type[Message], ...] = (Register, ModelRequest, UpdateSubmission, TaskFailed, Leave)
LONGEST_TEXT = 2**20  # characters of a letter's JSON: a plan, and some numbers
MOST_MESSAGES = 64
_STYPE = "offbeat.raw"
_DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
              torch.uint8, torch.bool)
}  # fmt: skip
_PARTS = ("values", "integers", "shared")  # of a model


@dataclass(frozen=True)
class Payload:
    """An opened letter."""

    head: Mapping[str, Any]
    messages: Sequence[Message] = ()


def encode(head: Mapping[str, Any], messages: Iterable[Message] = ()) -> RecordDict:
    """A letter as Flower carries it."""
    tensors: Tensors = {}
    entries = [_entry(message, str(i), tensors) for i, message in enumerate(messages)]
    return packed({"head": dict(head), "messages": entries}, tensors)


def decode(
    record: RecordDict,
    kinds: Sequence[type[Message]],
    layout: Callable[[Mapping[str, Any]], Layout] | None = None,
) -> Payload:
    """Open a letter that may hold messages of these `kinds`; `layout` gives that of its models, of its head.

    Raises `InvalidUpdateError` where it is none.
    """
    document, tensors = unpacked(record)
    head, entries = document.get("head"), document.get("messages")
    if not isinstance(head, dict) or not isinstance(entries, list) or len(entries) > MOST_MESSAGES:
        raise _bad("it has no head, or no list of messages, or too many of them")
    models = layout(head) if layout is not None else None
    known = {kind.__name__: kind for kind in kinds}
    return Payload(head, [_message(e, str(i), known, tensors, models) for i, e in enumerate(entries)])


def packed(document: Mapping[str, Any], tensors: Tensors) -> RecordDict:
    """JSON values and tensors as records."""
    arrays = ArrayRecord({name: _array(tensor) for name, tensor in tensors.items()})
    text = json.dumps(document, separators=(",", ":"))
    return RecordDict({"offbeat": ConfigRecord({"text": text}), "tensors": arrays})


def unpacked(record: RecordDict) -> tuple[dict[str, Any], Tensors]:
    """What `packed` was given; raises `InvalidUpdateError` for anything else."""
    config, arrays = record.get("offbeat"), record.get("tensors")
    text = config.get("text") if isinstance(config, ConfigRecord) else None
    if not isinstance(text, str) or len(text) > LONGEST_TEXT or not isinstance(arrays, ArrayRecord):
        raise _bad("it is not one of Offbeat's")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise _bad("its text is no JSON") from None
    if not isinstance(document, dict):
        raise _bad("its text is no JSON object")
    return document, {name: _tensor(name, array) for name, array in arrays.items()}


# ---- messages ----


def _entry(message: Message, key: str, tensors: Tensors) -> dict[str, Any]:
    """A message's numbers and texts; its tensors go to `tensors`."""
    entry: dict[str, Any] = {"kind": type(message).__name__}
    for field in fields(message):
        value, name = getattr(message, field.name), f"{key}.{field.name}"
        if isinstance(value, Model):
            tensors |= {f"{name}.{part}": getattr(value, part) for part in _PARTS}
        elif isinstance(value, bytes):
            tensors[name] = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else _EMPTY
        elif isinstance(value, Tensor):
            tensors[name] = value
        elif field.name in _schema(type(message)).model_fields:
            entry[field.name] = dict(value) if isinstance(value, Mapping) else value
    return entry


def _message(
    entry: Any, key: str, known: Mapping[str, type[Message]], tensors: Tensors, layout: Layout | None
) -> Message:
    kind = known.get(str(entry.get("kind"))) if isinstance(entry, dict) else None
    if kind is None:
        raise _bad(f"message {key} is not one that is expected here")
    try:
        text = json.dumps({k: v for k, v in entry.items() if k != "kind"})
        found = _schema(kind).model_validate_json(text)
    except ValidationError as error:
        raise _bad(f"message {key} ({kind.__name__}): {format_error(error)}") from None
    values = {name: getattr(found, name) for name in type(found).model_fields}
    for name, hint in _tensor_fields(kind).items():
        values[name] = _big(f"{key}.{name}", hint, tensors, layout)
    return kind(**values)


def _big(name: str, hint: Any, tensors: Tensors, layout: Layout | None) -> Any:
    """A field that is a tensor, bytes or a model."""
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if Model in options and f"{name}.values" in tensors and layout is not None:
        parts = [tensors.get(f"{name}.{part}") for part in _PARTS]
        _check_model(name, parts, layout)
        return Model(layout, *cast(list[Tensor], parts))
    if name in tensors and Tensor in options:
        tensor = tensors[name]
        return tensor.numpy().tobytes() if bytes in options and tensor.dtype == torch.uint8 else tensor
    if type(None) not in options:
        raise _bad(f"{name} is missing")
    return None


def _check_model(name: str, parts: Sequence[Tensor | None], layout: Layout) -> None:
    sizes = (layout.values, layout.integers, layout.shared)
    dtypes = (torch.float32, torch.int64, torch.float32)
    for part, tensor, size, dtype in zip(_PARTS, parts, sizes, dtypes, strict=True):
        if tensor is None or tensor.dtype != dtype or tensor.shape != (size,):
            raise _bad(f"{name}.{part} is not of the layout of the model made here")


def _tensor_fields(kind: type[Message]) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(kind).items() if _is_big(hint)}


def _is_big(hint: Any) -> bool:
    return bool({Tensor, Model} & set(get_args(hint) if isinstance(hint, UnionType) else (hint,)))


def _schema(kind: type[Message]) -> type[BaseModel]:
    """What a message's numbers and texts may be."""
    if kind not in _SCHEMAS:
        hints = get_type_hints(kind)
        told: dict[str, Any] = {}
        for field in fields(kind):
            if not _is_big(hints[field.name]):
                default = field.default_factory() if field.default_factory is not MISSING else field.default
                told[field.name] = (hints[field.name], ... if default is MISSING else default)
        config = ConfigDict(strict=True, extra="forbid")
        _SCHEMAS[kind] = create_model(kind.__name__, __config__=config, **told)
    return _SCHEMAS[kind]


_SCHEMAS: dict[type[Message], type[BaseModel]] = {}

# ---- tensors ----

_EMPTY = torch.zeros(0, dtype=torch.uint8)


def _array(tensor: Tensor) -> Array:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return Array(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), _STYPE, data)


def _tensor(name: str, array: Array) -> Tensor:
    dtype, shape = _DTYPES.get(array.dtype), tuple(array.shape)
    if dtype is None or array.stype != _STYPE or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise _bad(f"array {name!r} is of a kind that Offbeat does not send")
    if prod(shape) * dtype.itemsize != len(array.data):
        raise _bad(f"array {name!r} has {len(array.data)} bytes, its shape and dtype ask for another number")
    tensor = torch.empty(shape, dtype=dtype)
    tensor.reshape(-1).view(torch.uint8).numpy()[:] = np.frombuffer(array.data, np.uint8)
    return tensor


def _bad(text: str) -> InvalidUpdateError:
    return InvalidUpdateError("letter", f"the message cannot be read: {text}")
