"""The path of one update through `offbeat.net`: the modules it passes and the queues it is put into.

    python scripts/trace_update.py

Runs a server and a site on loopback gRPC in one process, with a profiler in every thread, from the result of
a site's first training to the server's commit of the update and its acknowledgement on the wire.

A module counts if one of its functions is called with, or returns, something that contains the update or the
server's acknowledgement of it: the message, its tensors, its envelope, its bytes, or a list, tuple, mapping
or dataclass with one of these. `self` and the generated constructors of dataclasses do not count. A queue
counts if the update or the acknowledgement is put into it to be taken out by another task or thread.
"""

import asyncio
import dataclasses
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch
from torch import Tensor

import offbeat as ob
from offbeat.data.dataset import Dataset
from offbeat.models.specs import LogisticSpec
from offbeat.net import join, serve, server_learner
from offbeat.net.messages import UpdateAck, UpdateSubmission
from offbeat.net.server.service import Service
from offbeat.net.server.sessions import Sessions
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.serialization import serialize
from offbeat.net.wire.writer import MessageWriter
from offbeat.vectors.pool import VectorPool

FEATURES, CLASSES = (
    400_000,
    2,
)  # large: such a model is computed in a thread, its updates go to the update log
ACK = serialize(UpdateAck(0, accepted=True)).envelope.SerializeToString()
DEPTH = 5


class Trace:
    """What the profiler has seen. `modules` and `queues` are in the order in which they came first."""

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}
        self.queues: dict[str, None] = {}
        self._marks: tuple[bytes, ...] = ()

    def profile(self, frame: FrameType, event: str, result: Any) -> None:
        """A profile function, for `sys.setprofile`."""
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("offbeat.net.") or event not in ("call", "return"):
            return
        if not self._marks:
            if event == "return" and frame.f_code.co_qualname == "TrainingTask.run" and result is not None:
                octets = result.update.delta.numpy().tobytes()
                self._marks = octets[:32], octets[-32:]
            else:
                return
        code = frame.f_code
        if code.co_filename.startswith("<"):
            return  # a constructor that a dataclass has generated
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4)
        values = [frame.f_locals.get(v) for v in code.co_varnames[:count] if v != "self"]
        if any(self.contains(value) for value in ([result] if event == "return" else values)):
            self.modules.setdefault(name, code.co_qualname)

    def put(self, queue: str, *values: Any) -> None:
        """Something is put into a queue."""
        if self._marks and any(self.contains(value) for value in values):
            self.queues.setdefault(queue)

    def contains(self, value: Any, depth: int = DEPTH) -> bool:
        """Whether a value contains the update or its acknowledgement."""
        match value:
            case UpdateSubmission() | UpdateAck():
                return True
            case bytes() | bytearray() | memoryview():
                octets = bytes(value)
                return ACK in octets or any(mark in octets for mark in self._marks)
            case Tensor():
                return value.dtype == torch.float32 and self.contains(value.detach().numpy().tobytes())
            case pb.Envelope():
                return value.WhichOneof("message") in ("update_submission", "update_ack")
        if depth == 0:
            return False
        if isinstance(value, Mapping):
            value = list(value.values())
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
        elif isinstance(value, msgspec.Struct):
            value = [getattr(value, name) for name in value.__struct_fields__]
        return isinstance(value, list | tuple | deque) and any(self.contains(v, depth - 1) for v in value)


@contextmanager
def watched(trace: Trace) -> Iterator[None]:
    """The queues tell the trace what is put into them."""
    put, append, process = MessageWriter.put, Sessions._append, Service._process
    vector = VectorPool.vector

    def zeroed(self: VectorPool, *args: Any) -> Tensor:
        return vector(self, *args).zero_()  # memory that is used again may still have the update's bytes

    def watched_put(self: MessageWriter, message: Any) -> None:
        trace.put("server: writer" if isinstance(message, UpdateAck) else "site: writer", message)
        put(self, message)

    def watched_append(self: Sessions, inbound: Any) -> None:
        trace.put("server: inbox", inbound)
        append(self, inbound)

    def watched_process(self: Service, *batch: Any) -> Any:
        effects = process(self, *batch)
        trace.put("server: messages of the effects", effects.messages)
        trace.put("server: uncommitted effects", effects.updates)
        return effects

    MessageWriter.put, Sessions._append = watched_put, watched_append  # type: ignore[method-assign]
    VectorPool.vector = zeroed  # type: ignore[method-assign]
    Service._process = watched_process  # type: ignore[method-assign]
    try:
        yield
    finally:
        MessageWriter.put, Sessions._append = put, append  # type: ignore[method-assign]
        Service._process, VectorPool.vector = process, vector  # type: ignore[method-assign]


async def run_until_acknowledged(directory: Path) -> None:
    """A run of one update."""
    x = torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(0))
    data = Dataset(x, torch.arange(8) % CLASSES, CLASSES)
    training = ob.Training(lr=0.1, batch_size=4)
    learner = server_learner(LogisticSpec(), training, sample_shape=(FEATURES,), classes=CLASSES)
    experiment = ob.Experiment(ob.fedasync(steps=3), learner, until=ob.Until(tasks=1))
    async with serve(experiment, directory, "127.0.0.1:0") as server:
        await join(f"127.0.0.1:{server.port}", data, name="a")
        await server.ended()


def trace_update() -> Trace:
    """Trace the first update of a run."""
    trace, threads = Trace(), torch.get_num_threads()
    threading.setprofile(trace.profile)
    sys.setprofile(trace.profile)
    try:
        with watched(trace), tempfile.TemporaryDirectory() as directory:
            asyncio.run(run_until_acknowledged(Path(directory) / "run"))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        torch.set_num_threads(threads)
    return trace


def main() -> None:
    """Trace and print."""
    trace = trace_update()
    for number, (module, function) in enumerate(trace.modules.items(), 1):
        print(f"{number:3}  {module.removeprefix('offbeat.net.'):28} {function}")
    print(f"{len(trace.modules)} modules, {len(trace.queues)} queues: {', '.join(trace.queues)}")


if __name__ == "__main__":
    main()
