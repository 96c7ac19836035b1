"""What a coordinator wants done: first made durable, then said."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from offbeat.core.events import ClientId, TaskId, Version
from offbeat.core.journal import Row
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.net.messages import FromServer
from offbeat.runs.schema import Metric


@dataclass(frozen=True, slots=True)
class SiteRow:
    """What is kept of a site for ever: its number, and the data it last told of."""

    name: str
    client: ClientId
    samples: int
    labels: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A version to be measured, and where the run was when it became due (as in `Metric`)."""

    t: float
    version: Version
    tasks: int
    bytes_up: int
    bytes_down: int
    model: Model


@dataclass(slots=True)
class Effects:
    """What a batch of inputs has led to.

    `updates`, `rows`, `sites` and `metrics` are to be made durable, all or nothing, before the `messages`
    (each for a site, in order) are sent and the links in `closed` (a site, a reason) are ended. `now`, in
    seconds, `clients` and what was `rejected` are the run's as of then.
    """

    rows: list[Row] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    updates: dict[TaskId, LocalResult] = field(default_factory=dict)
    sites: dict[str, SiteRow] = field(default_factory=dict)
    messages: list[tuple[str, FromServer]] = field(default_factory=list)
    closed: list[tuple[str, str]] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    now: float = 0.0
    clients: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)

    @property
    def durable(self) -> bool:
        """Is there anything to write?"""
        return bool(self.rows or self.metrics or self.updates or self.sites)
