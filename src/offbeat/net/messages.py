"""What a server and a site say to each other, as values: no bytes, no sockets.

A site is one client of the federation: an institution, a device. It opens a connection with `Register`, is
answered with `Registered` or `Rejected`, and then both may send at any time. Names of the site's messages
say what happened there; those of the server say what to do. Either side may fall silent at any moment and
return with a new connection: every message can be sent again, and names its task.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from offbeat.core.events import ClientId, Metrics, TaskId, Version
from offbeat.core.model import Model

LONGEST_REASON = 500


def shorten(reason: str) -> str:
    """A reason as one printable line of at most `LONGEST_REASON` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"


# ---- from a site ----


@dataclass(frozen=True, slots=True)
class Register:
    """A site is there. Who it is, its credential says.

    `samples` is its number of training samples n_i, `steps_per_epoch` its ⌈n_i / batch size⌉ (0: as the batch
    size of the plan gives it), `labels` its numbers of samples of each class, if it tells them. `holds` is
    the task it has in hand, in training or trained and not yet acknowledged, of the run named `run`.
    """

    samples: int
    steps_per_epoch: int
    labels: tuple[int, ...] | None = None
    holds: TaskId | None = None
    run: str = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The site is alive; `steps` local steps of `task` are done. The server answers with one."""

    task: TaskId | None = None
    steps: int = 0


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """After `steps` local steps of a task the site asks for the current model, and waits for the answer."""

    task: TaskId
    steps: int


@dataclass(frozen=True, slots=True)
class UpdateReady:
    """The site has finished a task it was to hold, and keeps its update until it is told what to do."""

    task: TaskId
    steps: int
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UpdateSubmission:
    """The update of a task. `delta` is Δ = w_i − w_o: a float32 vector, or what the codec made of it.

    `integers` are the integer buffers, `shared` the change for the vector that travels with the model.
    """

    task: TaskId
    steps: int
    delta: Tensor | bytes
    integers: Tensor
    metrics: Metrics = field(default_factory=dict)
    lr: float = 0.0
    shared: Tensor | None = None


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """The task came to nothing at the site, which is idle again."""

    task: TaskId
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """The site leaves for good, or has heard that the run is over (`RunFinished`)."""

    reason: str = ""


FromSite = Register | Heartbeat | ModelRequest | UpdateReady | UpdateSubmission | TaskFailed | Leave

# ---- from the server ----


@dataclass(frozen=True, slots=True)
class Registered:
    """The site is client `client` of the run named `run`. `plan` says what is trained, as plain JSON values.

    `lease` is for how many seconds the site may be silent before it is declared gone.
    """

    client: ClientId
    run: str
    plan: Mapping[str, Any]
    lease: float


@dataclass(frozen=True, slots=True)
class Rejected:
    """The site may not take part, or its last message was not accepted: `reason` says why.

    With `final` the conversation is over and trying again is of no use.
    """

    reason: str
    final: bool = True


@dataclass(frozen=True, slots=True)
class TaskAssignment:
    """Train `steps` local steps from `model`, which is version `base`; fields as in `core.commands.Train`."""

    task: TaskId
    base: Version
    steps: int
    seed: int
    model: Model
    ask_after: int = 0
    lr_factor: float = 1.0
    hold: bool = False


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """The answer to `ModelRequest`: merge this model, version `version`; no model: nothing newer."""

    task: TaskId
    version: Version = 0
    clock: int = 0
    model: Model | None = None


@dataclass(frozen=True, slots=True)
class TaskRecall:
    """Report the task at the end of the epoch under way (`core.commands.Recall`)."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class UploadGrant:
    """Send the update that is held, within so many bits (none: all it takes)."""

    task: TaskId
    bits: int | None = None


@dataclass(frozen=True, slots=True)
class TaskCancel:
    """Stop this task, if it is in training, and forget what there is of it: its update is not wanted.

    A site that held it (`UpdateReady`) has trained all the same: its own state stays as it is after the task.
    """

    task: TaskId
    reason: str


@dataclass(frozen=True, slots=True)
class UpdateAck:
    """What became of a `UpdateSubmission`: `accepted` and durable at the server, or `reason` says why not.

    One that the server has already is accepted again.
    """

    task: TaskId
    accepted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run has ended."""

    reason: str


FromServer = (
    Registered
    | Rejected
    | Heartbeat
    | TaskAssignment
    | ModelResponse
    | TaskRecall
    | UploadGrant
    | TaskCancel
    | UpdateAck
    | RunFinished
)
Message = FromSite | FromServer
