"""Our messages as envelopes and bodies."""

import json
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offbeat.core.errors import RunError
from offbeat.core.model import Layout, Model
from offbeat.net import messages as m
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.bodies import DELTA, INTEGERS, PAYLOAD, SHARED, VALUES
from offbeat.net.wire.fields import shortened


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to be sent: its envelope and the bytes of its body, which are those of the tensors."""

    message: m.Message
    envelope: pb.Envelope
    body: tuple[memoryview, ...] = ()


def encode(message: m.Message, known: Layout | None = None) -> OutgoingMessage:
    """The envelope and body of a message; `known` is the layout that the peer has been told.

    A number that the protocol has no room for, such as one below 0, raises `ValueError`.
    """
    match message:
        case m.TaskAssignment(model=model) | m.ModelResponse(model=Model() as model):
            parts = _model_parts(model)
            layout = None if known is not None and model.layout == known else _layout(model.layout)
            envelope = (
                _assign(message, layout) if isinstance(message, m.TaskAssignment) else _fresh(message, layout)
            )
        case m.UpdateSubmission():
            parts = _result_parts(message)
            envelope = pb.Envelope(
                result=pb.Result(
                    task=message.task, steps=message.steps, metrics=message.metrics, lr=message.lr
                )
            )
        case _:
            return OutgoingMessage(message, _plain(message))
    body = tuple(part for _, part in parts)
    envelope.parts.extend(pb.Part(kind=kind, bytes=len(part)) for kind, part in parts)
    return OutgoingMessage(message, envelope, body)


def _plain(message: m.Message) -> pb.Envelope:
    """The envelope of a message without tensors."""
    match message:
        case m.Register(samples, steps, labels, holds, run):
            told = None if labels is None else pb.Labels(counts=labels)
            hello = pb.Hello(samples=samples, steps_per_epoch=steps, labels=told, holds=holds, run=run)
            return pb.Envelope(hello=hello)
        case m.Heartbeat(task, steps):
            return pb.Envelope(beat=pb.Beat(task=task, steps=steps))
        case m.ModelRequest(task, steps):
            return pb.Envelope(asks=pb.Asks(task=task, steps=steps))
        case m.UpdateReady(task, steps, measured):
            return pb.Envelope(done=pb.Done(task=task, steps=steps, metrics=measured))
        case m.TaskFailed(task, reason):
            return pb.Envelope(failed=pb.Failed(task=task, reason=shortened(reason)))
        case m.Leave(reason):
            return pb.Envelope(bye=pb.Bye(reason=shortened(reason)))
        case m.Registered(client, run, plan, lease):
            said = json.dumps(plan, allow_nan=False)
            return pb.Envelope(welcome=pb.Welcome(client=client, run=run, plan=said, lease=lease))
        case m.Rejected(reason, final):
            return pb.Envelope(refused=pb.Refused(reason=shortened(reason), final=final))
        case m.ModelResponse():
            return _fresh(message, None)
        case m.TaskRecall(task):
            return pb.Envelope(cut_short=pb.CutShort(task=task))
        case m.UploadGrant(task, bits):
            return pb.Envelope(may_send=pb.MaySend(task=task, bits=bits))
        case m.TaskCancel(task, reason):
            return pb.Envelope(forget=pb.Forget(task=task, reason=shortened(reason)))
        case m.UpdateAck(task, accepted, reason):
            receipt = pb.Receipt(task=task, accepted=accepted, reason=shortened(reason))
            return pb.Envelope(receipt=receipt)
        case m.RunFinished(reason):
            return pb.Envelope(over=pb.Over(reason=shortened(reason)))
    raise TypeError(f"{type(message).__name__} is no message")


def _assign(message: m.TaskAssignment, layout: pb.Layout | None) -> pb.Envelope:
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


def _fresh(message: m.ModelResponse, layout: pb.Layout | None) -> pb.Envelope:
    fresh = pb.Fresh(task=message.task, version=message.version, clock=message.clock, layout=layout)
    return pb.Envelope(fresh=fresh)


def _layout(layout: Layout) -> pb.Layout:
    entries = [pb.Entry(name=e.name, shape=e.shape, dtype=e.dtype, section=e.section) for e in layout.entries]
    return pb.Layout(entries=entries, shared=layout.shared)


Parts = list[tuple[pb.Part.Kind, memoryview]]


def _model_parts(model: Model) -> Parts:
    parts: Parts = [(VALUES, octets(model.values)), (INTEGERS, octets(model.integers))]
    return [*parts, (SHARED, octets(model.shared))] if model.layout.shared else parts


def _result_parts(result: m.UpdateSubmission) -> Parts:
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
