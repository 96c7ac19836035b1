"""Commands of the server's state machine to its driver.

A schedule yields commands; the server checks each, stamps it (task number, base version, new version) and
returns it to the driver. `note` documents the decision for readers of the journal, such as FedCompass's
group. That of an `Aggregate` also reaches the aggregator, which may need it (FedAT's tier); no other note has
an effect.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from offbeat.core.events import ClientId, TaskId, Version

Note = Mapping[str, Any]
UNSTAMPED = -1


class Train(Struct, frozen=True, gc=False):
    """Train this idle client for `steps` local steps from the current global model.

    Attributes:
        client: The client.
        steps: Local steps, at least 1.
        note: Note for the journal.
        task: Number of the task, stamped by the server.
        base: Version to train from, stamped by the server.
        ask_after: Local steps after which the client requests a fresh model, below `steps`; 0 means never.
        lr_factor: Factor of the learning rate.
        hold: Whether the client holds its update when it is done, and reports `Ready`.
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
    """Send the client of the current `WantsModel` the current global model, to merge into its own.

    Attributes:
        client: The client.
        clock: Age of the model in the run for the merge (FedASMU's g); 0 means the number of the version
            counted from 1.
        task: Number of the task, stamped by the server.
        version: Version of the model, stamped by the server.
    """

    client: ClientId
    clock: int = 0
    task: TaskId = UNSTAMPED
    version: Version = UNSTAMPED


class Recall(Struct, frozen=True, gc=False):
    """Recall a client in training: it reports at the end of its next epoch.

    Its update then arrives with the steps done so far, which may be all of them. `task` is stamped by the
    server.
    """

    client: ClientId
    task: TaskId = UNSTAMPED


class Measure(Struct, frozen=True, gc=False):
    """Measure the channel of these clients now; the answer is `Measured`.

    Attributes:
        clients: The clients.
        seconds: Radio time that they share. None means the channel's own iteration.
    """

    clients: tuple[ClientId, ...]
    seconds: float | None = None


class Upload(Struct, frozen=True, gc=False):
    """Let a client that is ready send its update.

    Attributes:
        client: The client.
        bits: Budget of the update in bits. None means no budget.
        task: Number of the task, stamped by the server.
    """

    client: ClientId
    bits: int | None = None
    task: TaskId = UNSTAMPED


class Discard(Struct, frozen=True, gc=False):
    """Stop the task of a client, which is idle again: it trains on no further, and sends no update.

    The client is in training, or is ready and holds its update; one that still trains a task with `hold`
    cannot be stopped. `task` is stamped by the server.
    """

    client: ClientId
    reason: str
    task: TaskId = UNSTAMPED


class Aggregate(Struct, frozen=True, gc=False):
    """Make the next version of the global model from arrived updates.

    Attributes:
        tasks: Tasks of the updates, at least one, in order.
        note: Note for the journal and the aggregator.
        server_step: Whether the server steps (momentum and the like) are applied to the aggregator's step.
        version: The new version, stamped by the server.
        clients: Clients in the order of `tasks`, stamped by the server.
    """

    tasks: tuple[TaskId, ...]
    note: Note = field(default_factory=dict)
    server_step: bool = True
    version: Version = UNSTAMPED
    clients: tuple[ClientId, ...] = ()


class Drop(Struct, frozen=True, gc=False):
    """Drop an arrived update; `reason` is for the journal and for the client."""

    task: TaskId
    reason: str
    client: ClientId = UNSTAMPED


class SetTimer(Struct, frozen=True, gc=False):
    """Set a timer: feed `Timer(timer)` at time `at` (seconds); replaces a timer of that name."""

    timer: str
    at: float


class CancelTimer(Struct, frozen=True, gc=False):
    """Cancel a timer."""

    timer: str


class Stop(Struct, frozen=True, gc=False):
    """End the run."""

    reason: str


Command = (
    Train | Send | Recall | Measure | Upload | Discard | Aggregate | Drop | SetTimer | CancelTimer | Stop
)
