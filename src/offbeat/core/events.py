"""Events that a driver feeds to the server's state machine.

Every event is fed together with a time in seconds of the driver's clock (virtual or real).
The ordered list of (time, event) is the journal.
"""

from collections.abc import Mapping

from msgspec import Struct, field

ClientId = int
TaskId = int
Version = int
Metrics = Mapping[str, float]
ClientResults = Mapping[ClientId, tuple[int, Metrics]]
"""Number of samples and metrics of each client that has evaluated a model."""


class Joined(Struct, frozen=True, gc=False):
    """A client has joined and is idle. Before `Begin` this only fills the fleet.

    Attributes:
        client: The client.
        samples: n_i, its number of training samples.
        steps_per_epoch: ⌈n_i / batch size⌉.
        holds: A task from before it left, which it still holds: the client is then busy with that task, whose
            update may yet arrive. None means none.
        labels: Number of its samples of each class, for algorithms that select by them. None means unknown.
    """

    client: ClientId
    samples: int
    steps_per_epoch: int
    holds: TaskId | None = None
    labels: tuple[int, ...] | None = None


class Begin(Struct, frozen=True, gc=False):
    """Enough clients have joined: the schedule starts."""


class Ready(Struct, frozen=True, gc=False):
    """A client has finished a task with `hold`, and waits for `Upload` or `Discard`.

    The metrics are for the selection of clients, such as "norm", the L2 norm of its update.
    """

    client: ClientId
    task: TaskId
    steps: int
    metrics: Metrics = field(default_factory=dict)


class Measured(Struct, frozen=True, gc=False):
    """The answer to `Measure`: each client's capacity in bits per symbol, and the number of symbols."""

    capacities: tuple[tuple[ClientId, float], ...]
    symbols: float


class Line(Struct, frozen=True, gc=False):
    """The parts of a task's time, in seconds; the client waited for the rest of it.

    Attributes:
        received: Until the client had its models, from when they were sent, or it asked for them.
        trained: In local steps.
        sent: From the end of the training until the update was there.
        latency: Of a message without tensors, one way.
    """

    received: float
    trained: float
    sent: float
    latency: float


class Arrived(Struct, frozen=True, gc=False):
    """A client's update has arrived, after `steps` local steps, with the client's own metrics.

    The event has only the numbers that a schedule may decide on; the tensors stay with the driver. Where
    messages take no time, there is no `line`.
    """

    client: ClientId
    task: TaskId
    steps: int
    metrics: Metrics = field(default_factory=dict)
    line: Line | None = None


class WantsModel(Struct, frozen=True, gc=False):
    """In mid-task, after `steps` local steps, a client requests the current global model.

    The answer follows at once: the schedule's `Send`, or that there is no model for it.
    """

    client: ClientId
    task: TaskId
    steps: int


class Lost(Struct, frozen=True, gc=False):
    """A task is lost (crash, dropout), while its client stays and is idle again."""

    client: ClientId
    task: TaskId
    reason: str = "dropout"


class Left(Struct, frozen=True, gc=False):
    """A client has left; the task it was training, if any, is lost with it.

    The driver need not name the task: the server fills it in before the schedule sees the event.
    """

    client: ClientId
    task: TaskId | None = None
    reason: str = "left"


class Timer(Struct, frozen=True, gc=False):
    """A timer set by the schedule has fired."""

    timer: str


RUN_ENDED = "the run has ended: "
"""The beginning of the reason of a release that the run's end has cut off."""
UPDATES_GONE = (
    "its updates were trained from withdrawn versions, turned out to be absurd, or were damaged on the "
    "server's disk"
)
"""The reason of an aggregation of which too few updates are held."""


class Skipped(Struct, frozen=True, gc=False):
    """An aggregation is skipped: its version has the content of the version before.

    What a version's values are is known to the driver only, so this is an event; no schedule sees it.
    """

    version: Version
    reason: str


def is_given_up(reason: str) -> bool:
    """Whether an aggregation is skipped only because its release still waited when the run ended."""
    return reason.startswith(RUN_ENDED)


class RolledBack(Struct, frozen=True, gc=False):
    """A new version has the content of an earlier one; the versions between are withdrawn.

    No schedule sees it. The held updates that were trained from a withdrawn version, or have merged one, are
    left out of the aggregations that name them.

    Attributes:
        to: The earlier version.
        reason: Why the versions after it are withdrawn.
    """

    to: Version
    reason: str


class CommitteeFormed(Struct, frozen=True, gc=False):
    """The helpers of secure aggregation are all there, for the first time or others than before.

    No schedule sees it. The held updates, which are masked for the helpers before, are left out of the
    aggregations that name them.

    Attributes:
        epoch: Number of this committee within the run, from 1.
        run: 32 bytes drawn when the first one was formed, in hexadecimal.
        helpers: Of each helper its name, its public key, and the key by which its votes are verified, both in
            hexadecimal.
    """

    epoch: int
    run: str
    helpers: tuple[tuple[str, str, str], ...]


class Releasing(Struct, frozen=True, gc=False):
    """A release has fixed which masked updates it sums: its helpers may be asked. No schedule sees it.

    Attributes:
        version: The version that it makes.
        tasks: The tasks whose updates are summed.
        weights: Their integer weights.
        left_out: The tasks that are not, as their seeds do not decrypt.
        manifest: Digest of these, in hexadecimal.
    """

    version: Version
    tasks: tuple[TaskId, ...]
    weights: tuple[int, ...]
    left_out: tuple[TaskId, ...]
    manifest: str


class Released(Struct, frozen=True, gc=False):
    """The masked sum of a release is known, or the release has failed. No schedule sees it.

    Attributes:
        version: The version that it makes.
        reason: Why it has failed: then the version has the content of the one before, and does not count.
            Empty if it has not.
        left_out: The tasks whose updates are not in the sum.
        helpers: Names of those that have answered.
        instances: Instance number of each helper's file that has answered with a sum.
        seconds: How long that took.
        complaints: The helpers that say of a task that its seeds do not decrypt, by name, for each such task.
        at_fault: Why helpers are to blame, by name.
        invalid: Whether it has failed as its sum cannot be that of clipped updates.
        formed: Whether its sum was formed although it has failed, or may have been.
    """

    version: Version
    reason: str = ""
    left_out: tuple[TaskId, ...] = ()
    helpers: tuple[str, ...] = ()
    instances: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    complaints: tuple[tuple[TaskId, tuple[str, ...]], ...] = ()
    at_fault: Mapping[str, str] = field(default_factory=dict)
    invalid: bool = False
    formed: bool = False


Event = (
    Joined | Begin | WantsModel | Ready | Measured | Arrived | Lost | Left | Timer
    | Skipped | RolledBack | CommitteeFormed | Releasing | Released
)  # fmt: skip
