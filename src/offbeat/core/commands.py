"""What the server's state machine asks its driver to do.

A schedule yields commands; the server checks each, stamps it (task number, base version, new
version) and hands it to the driver. `note` holds what a reader of the journal wants to know about
the decision, such as FedCompass's group. That of an `Aggregate` also reaches the aggregator, which
may need it (FedAT's tier); no other note changes what is done.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from offbeat.core.events import ClientId, TaskId, Version

Note = Mapping[str, Any]
UNSTAMPED = -1


class Train(Struct, frozen=True, gc=False):
    """Train this idle client for `steps` local steps from the current global model.

    With `hold` it keeps its update when it is done, and says that it is `Ready`. With `ask_after` the
    client asks for a fresh model after so many of them (0: never). `lr_factor` multiplies its learning rate.
    `task` and `base` are stamped by the server: a schedule leaves them out.
    """

    client: ClientId
    steps: int
    note: Note = field(default_factory=dict)
    task: TaskId = UNSTAMPED
    base: Version = UNSTAMPED
    ask_after: int = 0
    lr_factor: float = 1.0
    hold: bool = False


class Send(Struct, frozen=True, gc=False):
    """Send the client that has just asked (`WantsModel`) the current global model, to merge into its own.

    `clock` is what the merge takes for the model's age in the run (FedASMU's g); 0, the default, stands
    for the number of the version counted from 1. `task` and `version` are stamped by the server.
    """

    client: ClientId
    clock: int = 0
    task: TaskId = UNSTAMPED
    version: Version = UNSTAMPED


class Recall(Struct, frozen=True, gc=False):
    """Ask a client in training to report what it has at its next epoch's end; `task` is stamped.

    Its update then arrives with the steps it has done, which may be all of them.
    """

    client: ClientId
    task: TaskId = UNSTAMPED


class Measure(Struct, frozen=True, gc=False):
    """Measure the channel of these clients now; the answer is `Measured`.

    `seconds` is the radio time to be shared among them (none: the channel's own iteration).
    """

    clients: tuple[ClientId, ...]
    seconds: float | None = None


class Upload(Struct, frozen=True, gc=False):
    """Let a client that is ready send its update, within so many bits (none: all it takes).

    `task` is stamped by the server.
    """

    client: ClientId
    bits: int | None = None
    task: TaskId = UNSTAMPED


class Discard(Struct, frozen=True, gc=False):
    """A client that is ready need not send its update: it is free again. `task` is stamped."""

    client: ClientId
    reason: str
    task: TaskId = UNSTAMPED


class Aggregate(Struct, frozen=True, gc=False):
    """Make the next version of the global model out of these arrived updates, in this order.

    With `server_step=False` the aggregator's step is applied as it is, past momentum and the like.
    `version`, the one made, and `clients`, in the order of `tasks`, are stamped by the server.
    """

    tasks: tuple[TaskId, ...]
    note: Note = field(default_factory=dict)
    server_step: bool = True
    version: Version = UNSTAMPED
    clients: tuple[ClientId, ...] = ()


class Drop(Struct, frozen=True, gc=False):
    """Never use this arrived update; `reason` is for the journal and for the client."""

    task: TaskId
    reason: str
    client: ClientId = UNSTAMPED


class SetTimer(Struct, frozen=True, gc=False):
    """Feed `Timer(timer)` at time `at` (seconds); a timer of that name is replaced."""

    timer: str
    at: float


class CancelTimer(Struct, frozen=True, gc=False):
    """Forget this timer."""

    timer: str


class Stop(Struct, frozen=True, gc=False):
    """The run is over."""

    reason: str


Command = (
    Train | Send | Recall | Measure | Upload | Discard | Aggregate | Drop | SetTimer | CancelTimer | Stop
)
