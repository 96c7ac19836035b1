"""The state of a site between Flower's messages, each of which may start a new process.

All of it is in the node's `Context.state`.
"""

from dataclasses import dataclass, field
from typing import cast

import torch
from flwr.app import ConfigRecord, RecordDict
from safetensors.torch import load, save

from offbeat.core.events import TaskId
from offbeat.core.model import Tensors
from offbeat.flower.serialization import RECORD, decode, to_arrays
from offbeat.net.messages import TaskAssignment

_STATE, _NONE = "offbeat.state", -1


@dataclass(frozen=True)
class PausedTask:
    """A task that waits for the answer to its request, and the checkpoint of its training."""

    assignment: TaskAssignment
    training: Tensors


@dataclass
class Memory:
    """The state of a site in the run named `run`.

    `state` is the client's own state after its last accepted update; `pending` is the state after the one
    that was sent last, which is not acknowledged yet.
    """

    run: str = ""
    state: Tensors = field(default_factory=dict)
    pending: tuple[TaskId, Tensors] | None = None
    paused: PausedTask | None = None

    def begin(self, run: str) -> None:
        """The site takes part in this run; the state of another one is deleted."""
        if run != self.run:
            self.run, self.state, self.pending, self.paused = run, {}, None, None

    def acknowledge(self, task: TaskId, accepted: bool) -> None:
        """The server has answered an update."""
        if self.pending is not None and self.pending[0] == task:
            if accepted:
                self.state = self.pending[1]
            self.pending = None


def load_state(record: RecordDict) -> Memory:
    """The memory in a context's state; an empty one if the state has none."""
    config = record.get(_STATE)
    if not isinstance(config, ConfigRecord):
        return Memory()
    tensors, pending = load(cast(bytes, config["tensors"])), cast(int, config["pending"])
    memory = Memory(str(config["run"]), _named(tensors, "state"))
    if pending != _NONE:
        memory.pending = pending, _named(tensors, "pending")
    if RECORD in record:
        [assignment] = decode(record, "server")
        assert isinstance(assignment, TaskAssignment)
        memory.paused = PausedTask(assignment, _named(tensors, "paused"))
    return memory


def save_state(memory: Memory, record: RecordDict) -> None:
    """Put a memory into a context's state."""
    task, pending = memory.pending or (_NONE, {})
    paused = memory.paused
    parts = {"state": memory.state, "pending": pending, "paused": paused.training if paused else {}}
    tensors = {
        f"{part}.{name}": tensor.clone(memory_format=torch.contiguous_format)
        for part, named in parts.items()
        for name, tensor in named.items()
    }
    record[_STATE] = ConfigRecord({"run": memory.run, "pending": task, "tensors": save(tensors)})
    if paused is not None:
        record[RECORD] = to_arrays([paused.assignment])
    elif RECORD in record:
        del record[RECORD]


def _named(tensors: Tensors, part: str) -> Tensors:
    prefix = f"{part}."
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
