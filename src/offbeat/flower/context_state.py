"""What a site keeps between Flower's messages, each of which may find a new process.

All of it is in the node's `Context.state`.
"""

from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from offbeat.core.events import TaskId
from offbeat.core.model import Layout, Model, Tensors
from offbeat.flower.serialization import packed, unpacked
from offbeat.net.messages import TaskAssignment

_TEXT, _TENSORS = "offbeat", "tensors"
_NUMBERS = ("task", "base", "steps", "seed", "ask_after", "lr_factor")  # of an assignment
_MODEL = ("values", "integers", "shared")


@dataclass(frozen=True)
class PausedTask:
    """A task that waits for the answer to its request: what it was, and where its training is."""

    assign: TaskAssignment
    training: Tensors


@dataclass
class Memory:
    """A site's memory in the run named `run`.

    `state` is the client's own state after its last update that was accepted; `pending` is the state after
    the one that was sent last, which is not answered yet.
    """

    run: str = ""
    state: Tensors = field(default_factory=dict)
    pending: tuple[TaskId, Tensors] | None = None
    half: PausedTask | None = None

    def begin(self, run: str) -> None:
        """The site takes part in this run; what is here of another one is forgotten."""
        if run != self.run:
            self.run, self.state, self.pending, self.half = run, {}, None, None

    def settle(self, task: TaskId, accepted: bool) -> None:
        """The server has answered an update."""
        if self.pending is not None and self.pending[0] == task:
            if accepted:
                self.state = self.pending[1]
            self.pending = None


def load_state(record: RecordDict, layout: Layout) -> Memory:
    """The memory in a context's state; an empty one if there is none."""
    if _TEXT not in record:
        return Memory()
    document, tensors = unpacked(record)
    memory = Memory(str(document["run"]), _named(tensors, "state"))
    if document["pending"] is not None:
        memory.pending = int(document["pending"]), _named(tensors, "pending")
    if (numbers := document["half"]) is not None:
        model = Model(layout, *(tensors[f"model.{part}"] for part in _MODEL))
        memory.half = PausedTask(TaskAssignment(model=model, **numbers), _named(tensors, "half"))
    return memory


def save_state(memory: Memory, record: RecordDict) -> None:
    """Put a memory into a context's state."""
    tensors = {f"state.{name}": tensor for name, tensor in memory.state.items()}
    pending, half, numbers = memory.pending, memory.half, None
    if pending is not None:
        tensors |= {f"pending.{name}": tensor for name, tensor in pending[1].items()}
    if half is not None:
        numbers = {name: getattr(half.assign, name) for name in _NUMBERS}
        tensors |= {f"model.{part}": getattr(half.assign.model, part) for part in _MODEL}
        tensors |= {f"half.{name}": tensor for name, tensor in half.training.items()}
    document = {"run": memory.run, "pending": pending[0] if pending else None, "half": numbers}
    made = packed(document, tensors)
    config, arrays = made[_TEXT], made[_TENSORS]
    assert isinstance(config, ConfigRecord)
    assert isinstance(arrays, ArrayRecord)
    record[_TEXT], record[_TENSORS] = config, arrays


def _named(tensors: Tensors, kind: str) -> Tensors:
    start = f"{kind}."
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
