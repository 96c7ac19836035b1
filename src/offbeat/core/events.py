"""What a driver tells the server's state machine.

Every event is fed together with a time in seconds of the driver's clock (virtual or real).
The ordered list of (time, event) is the journal.
"""

from collections.abc import Mapping

from msgspec import Struct, field

ClientId = int
TaskId = int
Version = int
Metrics = Mapping[str, float]


class Joined(Struct, frozen=True, gc=False):
    """A client is there and idle. Before `Begin` this only fills the fleet.

    `samples` is its number of training samples n_i, `steps_per_epoch` its ⌈n_i / batch size⌉.
    `holds` names a task it was given before it left and still has in hand: the client is then
    busy with that task, whose update may yet arrive. `labels` are its numbers of samples of each class,
    told to algorithms that choose by them.
    """

    client: ClientId
    samples: int
    steps_per_epoch: int
    holds: TaskId | None = None
    labels: tuple[int, ...] | None = None


class Begin(Struct, frozen=True, gc=False):
    """Enough clients are there: the schedule starts."""


class Ready(Struct, frozen=True, gc=False):
    """A client has finished a task it was told to hold: it waits to be told to upload or to discard it.

    The metrics have what can be chosen by, such as "norm", the length of its update.
    """

    client: ClientId
    task: TaskId
    steps: int
    metrics: Metrics = field(default_factory=dict)


class Measured(Struct, frozen=True, gc=False):
    """The answer to `Measure`: each client's capacity in bits per symbol, and the symbols there are."""

    capacities: tuple[tuple[ClientId, float], ...]
    symbols: float


class Arrived(Struct, frozen=True, gc=False):
    """A client's update is here: `steps` local steps done, with the client's own metrics.

    Only what a schedule may decide on travels in the event; the tensors stay with the driver.
    """

    client: ClientId
    task: TaskId
    steps: int
    metrics: Metrics = field(default_factory=dict)


class WantsModel(Struct, frozen=True, gc=False):
    """In mid-task, after `steps` local steps, a client asks for the current global model.

    It is told the outcome at once: the schedule's `Send`, or that there is nothing for it.
    """

    client: ClientId
    task: TaskId
    steps: int


class Lost(Struct, frozen=True, gc=False):
    """A task came to nothing (crash, dropout), while its client stays and is idle again."""

    client: ClientId
    task: TaskId
    reason: str = "dropout"


class Left(Struct, frozen=True, gc=False):
    """A client is gone; the task it was training, if any, is lost with it.

    The driver need not name the task: the server fills it in before the schedule sees the event.
    """

    client: ClientId
    task: TaskId | None = None
    reason: str = "left"


class Timer(Struct, frozen=True, gc=False):
    """A timer set by the schedule fired."""

    timer: str


Event = Joined | Begin | WantsModel | Ready | Measured | Arrived | Lost | Left | Timer
