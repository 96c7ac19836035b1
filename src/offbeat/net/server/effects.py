"""The effects of what comes in: first made durable, then sent."""

from typing import Any

from msgspec import Struct, field

from offbeat.core.events import ClientId, ClientResults, Metrics, TaskId, Version
from offbeat.core.good_version import GoodVersion
from offbeat.core.journal import Row
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.net.messages import FromServer
from offbeat.net.secure.release_seeds import ReleaseSeed, ReleaseSum
from offbeat.runs.schema import ClientMetric, Metric


class SiteRow(Struct, frozen=True):
    """What is kept of a site for ever: its number, and the data it last told of."""

    name: str
    client: ClientId
    samples: int
    labels: tuple[int, ...] | None


class Evaluation(Struct, frozen=True):
    """A version to be measured, and where the run was when it became due (as in `Metric`)."""

    t: float
    version: Version
    tasks: int
    bytes_up: int
    bytes_down: int
    model: Model


class DoneEvaluation(Struct, frozen=True):
    """A version that was evaluated at the sites: all numbers, and what each site has found."""

    evaluation: Evaluation
    metrics: Metrics
    clients: ClientResults


LoggedUpdate = LocalResult | bytes | None
"""An update as a commit gets it: its bytes if it is small, None if the file of large updates has it. Where
nothing is written, it is a copy of the update."""

Measurements = list[tuple[Evaluation, Metrics]]


class Effects(Struct):
    """What a batch of inputs has led to.

    `updates`, `rows`, `sites`, `metrics` and `client_metrics` are to be made durable, all or nothing, before
    the `messages` (each for a site, in order) are sent and the connections in `closed` (a site, a reason) are
    ended. `meta` are the entries of the run's table `meta` as of then, which are written for their own sake
    if `told`. `evaluated` are the global models that `metrics` are of, one for each. `good` is what a
    rollback in `rows` goes back to, and `seeds` and `sums` are those of the releases in `rows`, to be made
    durable before them. `updates` are as `Driver.log_update` has left them.
    """

    rows: list[Row] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    evaluated: list[Model] = field(default_factory=list)
    client_metrics: list[ClientMetric] = field(default_factory=list)
    good: GoodVersion | None = None
    seeds: list[ReleaseSeed] = field(default_factory=list)
    sums: list[ReleaseSum] = field(default_factory=list)
    updates: dict[TaskId, LoggedUpdate] = field(default_factory=dict)
    sites: dict[str, SiteRow] = field(default_factory=dict)
    messages: list[tuple[str, FromServer]] = field(default_factory=list)
    closed: list[tuple[str, str]] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    told: bool = False

    @property
    def durable(self) -> bool:
        """Is there anything to write?"""
        return bool(self.rows or self.metrics or self.updates or self.sites or self.told)
