"""Messages between a server and a site, as values: no bytes, no sockets.

A site is one client of the federation: an institution, a device. It opens a connection with `Register`, is
answered with `Registered` or `Rejected`, and then both may send at any time. Names of the site's messages
say what happened there; those of the server say what to do. Either side may fall silent at any moment and
return with a new connection: every message can be sent again, and names its task.

The protocol's schema is made from these declarations (`scripts/wire_schema.py`), and serialization follows
them. Numbers of fields are their places here, and those of messages their places in `FromSite` and
`FromServer`: new ones go to the end. Whole numbers are from 0 to 2^63 - 1; annotations have the other bounds.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, field
from torch import Tensor

from offbeat.core.events import ClientId, TaskId, Version
from offbeat.core.model import Model
from offbeat.secure.bounds import HELPERS, LONGEST_REASON, Box, Digest, Name, Reason
from offbeat.secure.committee import Committee
from offbeat.secure.messages import UnmaskRefused, UnmaskRequest, UnmaskShare

MOST_METRICS, LONGEST_METRIC = 32, 64
"""Metrics of an update, and characters of the name of one: the journal has them for every update."""
UpdateMetrics = Annotated[
    Mapping[Annotated[str, Meta(max_length=LONGEST_METRIC)], float], Meta(max_length=MOST_METRICS)
]
EvaluationMetrics = Annotated[Mapping[Annotated[str, Meta(max_length=100)], float], Meta(max_length=100)]
Labels = Annotated[tuple[int, ...], Meta(max_length=100_000)]
NotNegative = Annotated[float, Meta(ge=0)]
"""A finite number that is not negative."""


LABELS_NEEDED = "the algorithm needs each site's number of samples by class: tell it"
"""Why a site without labels is rejected; a site that may send them registers again with them."""


def shorten(reason: str) -> str:
    """A reason as one printable line of at most `LONGEST_REASON` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"


# ---- from a site ----


class Register(Struct, frozen=True):
    """A site registers. Its credential proves who it is.

    `samples` is its number of training samples n_i, `steps_per_epoch` its ⌈n_i / batch size⌉ (0: as the batch
    size of the run specification gives it), `labels` its numbers of samples of each class, told only to a
    server that has asked (`LABELS_NEEDED`); none otherwise.
    `held_out` is the number of samples that it evaluates models on, when it is asked; 0: none.
    `holds` is the task it has in hand, in training or trained and not yet acknowledged, of the run named
    `run`. With `wants_model` it asks for the final model.

    A helper of a run with secure aggregation registers with its `public_key`, without samples, and with the
    `verify_key` of its votes; `instance` and `committee` are of its file: its number of releases, and the
    digest of the committee that it serves.
    """

    samples: int
    steps_per_epoch: int
    labels: Labels = ()
    holds: TaskId | None = None
    run: Name = ""
    held_out: int = 0
    wants_model: bool = False
    public_key: Digest = b""
    instance: int = 0
    committee: Digest = b""
    verify_key: Digest = b""


class Heartbeat(Struct, frozen=True):
    """The site is alive; `steps` local steps of `task` are done. The server answers with one."""

    task: TaskId | None = None
    steps: int = 0


class ModelRequest(Struct, frozen=True):
    """After `steps` local steps of a task the site asks for the current model, and waits for the answer."""

    task: TaskId
    steps: int


class UpdateReady(Struct, frozen=True):
    """The site has finished a task whose update it holds, and keeps it until it gets a decision."""

    task: TaskId
    steps: int
    metrics: UpdateMetrics = field(default_factory=dict)


class UpdateSubmission(Struct, frozen=True):
    """The update of a task. `delta` is Δ = w_i − w_o: a float32 vector, or the codec's payload.

    `integers` are the integer buffers, `shared` the change for the vector that travels with the model.

    With secure aggregation `delta` is the masked update, int32 [parameters]. `committee` is the digest of the
    helpers it is masked for, `boxes` are its seeds for each of them. There is nothing else then but `lr`.

    `received` and `trained` are the seconds in which the site received the models of the task, and in which
    it trained. 0 means that it does not tell, as with privacy.
    """

    task: TaskId
    steps: int
    delta: Tensor | bytes
    integers: Tensor
    metrics: UpdateMetrics = field(default_factory=dict)
    lr: float = 0.0
    shared: Tensor | None = None
    committee: Digest = b""
    boxes: Annotated[tuple[Box, ...], Meta(max_length=HELPERS)] = ()
    received: NotNegative = 0.0
    trained: NotNegative = 0.0


def update_bytes(update: UpdateSubmission) -> int:
    """The bytes of an update's tensors, or of the payload in place of one."""
    sizes = (x if x is None else len(x) if isinstance(x, bytes) else x.nbytes for x in
             (update.delta, update.integers, update.shared))  # fmt: skip
    return sum(size for size in sizes if size is not None)


class TaskFailed(Struct, frozen=True):
    """The task came to nothing at the site, which is idle again."""

    task: TaskId
    reason: Reason


class EvaluationResult(Struct, frozen=True):
    """A site's metrics of a version on the `samples` that it holds out; NaN where a metric is undefined.

    Without samples the evaluation came to nothing, and `reason` says why.
    """

    version: Version
    samples: int
    metrics: EvaluationMetrics = field(default_factory=dict)
    reason: Reason = ""


class Leave(Struct, frozen=True):
    """The site leaves for good, or has heard that the run is over (`RunFinished`)."""

    reason: Reason = ""


class Renewed(Struct, frozen=True):
    """The site has stored the token of the last `Renewal`, durably."""


TaskReport = ModelRequest | UpdateReady | UpdateSubmission | TaskFailed
"""Messages of a site about a task, which is their field `task`."""
FromHelper = UnmaskShare | UnmaskRefused
"""What a helper of secure aggregation answers."""
FromSite = Register | Heartbeat | TaskReport | EvaluationResult | Leave | Renewed | FromHelper

# ---- from the server ----


class Registered(Struct, frozen=True):
    """The site is client `client` of the run named `run`. `plan` is the run specification as plain JSON.

    `lease` is for how many seconds the site may be silent before it is declared gone. With `shares_model` the
    run gives its final model to the sites that ask for it. `site` is the name that its credential proves.
    """

    client: ClientId
    run: Name
    plan: Mapping[str, Any]
    lease: NotNegative
    shares_model: bool = False
    site: Name = ""


class Rejected(Struct, frozen=True):
    """The site may not take part, or its last message was not accepted: `reason` has the cause.

    With `final` the conversation is over and trying again is of no use.
    """

    reason: Reason
    final: bool = True


class TaskAssignment(Struct, frozen=True):
    """Train `steps` local steps from `model`, which is version `base`; fields as in `core.commands.Train`."""

    task: TaskId
    base: Version
    steps: int
    seed: int
    model: Model
    ask_after: int = 0
    lr_factor: NotNegative = 1.0
    hold: bool = False


class ModelResponse(Struct, frozen=True):
    """The answer to `ModelRequest`: merge this model, version `version`; no model: nothing newer."""

    task: TaskId
    version: Version = 0
    clock: int = 0
    model: Model | None = None


class TaskRecall(Struct, frozen=True):
    """Report the task at the end of the epoch under way (`core.commands.Recall`)."""

    task: TaskId


class UploadGrant(Struct, frozen=True):
    """Send the held update, within `bits` bits; None means all it takes."""

    task: TaskId
    bits: int | None = None


class TaskCancel(Struct, frozen=True):
    """Stop this task, if it is in training, and delete its update: it is not needed.

    A site that held it (`UpdateReady`) has trained all the same: its own state stays as it is after the task.
    """

    task: TaskId
    reason: Reason


class UpdateAck(Struct, frozen=True):
    """The outcome of a `UpdateSubmission`: `accepted` and durable at the server, or not, with `reason`.

    One that the server has already is accepted again.
    """

    task: TaskId
    accepted: bool
    reason: Reason = ""


class EvaluationRequest(Struct, frozen=True):
    """Evaluate this model, version `version`, on the held-out samples. Training goes on at the same time.

    For sites that hold out any (`Register`). A newer one takes the place of one that has not begun.
    """

    version: Version
    model: Model


class RunFinished(Struct, frozen=True):
    """The run named `run` has ended; with its final model, if it shares it and the site has asked for it."""

    reason: Reason
    run: Name = ""
    model: Model | None = None


class Renewal(Struct, frozen=True):
    """Another token for the site, which stores it before it answers with `Renewed`.

    For sites that have said that they store it. `expires` is when the token expires, in seconds since 1970.
    """

    token: Annotated[str, Meta(max_length=256)]
    expires: int

    def __repr__(self) -> str:
        return f"Renewal(expires={self.expires})"


TaskOrder = TaskAssignment | ModelResponse | TaskRecall | UploadGrant | TaskCancel | UpdateAck
"""Messages of the server about a task, which is their field `task`."""
FromServer = (
    Registered
    | Rejected
    | Heartbeat
    | TaskOrder
    | EvaluationRequest
    | RunFinished
    | Renewal
    | Committee
    | UnmaskRequest
)
Message = FromSite | FromServer
