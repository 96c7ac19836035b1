"""Snapshot of a running server: its counts and its sites, for the live page and Prometheus."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

SiteState = Literal["idle", "training", "waiting", "away", "expected", "revoked"]
ABSENT: frozenset[SiteState] = frozenset({"away", "expected", "revoked"})
"""States of a site that does not take part at the moment."""
PERSISTENT, LARGE = 0.9, 3.0
"""Share from which a site's persistence and size together are an alarm."""


@dataclass(slots=True)
class SiteView:
    """One site of a run.

    Attributes:
        client: Number of the client that it is; −1 for a site that has not been in the run yet.
        name: Name of the site.
        state: "waiting" holds an update it may not send yet; "away" was there, and is silent or has left;
            "expected" is enrolled, and has not come yet; "revoked" was there, and is enrolled no more.
        samples: Number of training samples.
        allowed: Least and greatest number of samples that it is enrolled with. None means any.
        task: Number of its task. None means none.
        steps_done: Local steps done of the task.
        steps: Local steps of the task.
        speed: Local steps per second of its last task; 0 before the first has ended.
        staleness: Staleness of its last update, in versions; −1 before the first.
        updates: Number of updates taken in from it.
        last_seen: When it was last heard, in seconds of the run's clock. None means never.
        persistence: How much its updates point the same way, 0 to 1. None means too few, or not known.
        size: Mean norm of its updates beside the median site's. None means not known.
    """

    client: int
    name: str
    state: SiteState = "away"
    samples: int = 0
    task: int | None = None
    steps_done: int = 0
    steps: int = 0
    speed: float = 0.0
    staleness: int = -1
    updates: int = 0
    last_seen: float | None = None
    allowed: tuple[int, int] | None = None
    persistence: float | None = None
    size: float | None = None

    @property
    def leads_away(self) -> bool:
        """Whether its updates all point the same way and are much larger than those of the others."""
        persistence, size = self.persistence, self.size
        return persistence is not None and size is not None and persistence >= PERSISTENT and size >= LARGE


@dataclass(frozen=True, slots=True)
class HelpersView:
    """The helpers of a run with secure aggregation.

    Attributes:
        text: Who they are, who is away, and what is waited for, in one line.
        connected: Number of those that are connected. None means that it is not known.
        waiting: The release that waits for its sum. None means that none does.
    """

    text: str
    connected: int | None = None
    waiting: int | None = None


@dataclass(frozen=True, slots=True)
class MirrorView:
    """The mirror of a server's directory.

    Attributes:
        directory: Where it is.
        problem: Why it does not have all that was acknowledged. None means that it has.
    """

    directory: str
    problem: str | None = None


def ended(site: SiteView) -> SiteView:
    """A site as it is once the run has ended: its task is over."""
    state: SiteState = site.state if site.state in ABSENT else "idle"
    return replace(site, state=state, task=None, steps_done=0, steps=0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A server at one moment.

    Attributes:
        run: Identifier of the run.
        label: Label of the run.
        algorithm: Name of the algorithm.
        now: Seconds of the run's clock.
        version: Number of the current global model.
        running: Number of tasks in training.
        arrived: Number of updates taken in.
        aggregated: Number of updates that a version was made of.
        dropped: Number of updates taken in that the algorithm chose not to use.
        lost: Number of tasks that came to nothing.
        bytes_up: Bytes of updates from sites.
        bytes_down: Bytes of models to sites.
        rejected: Number of refused updates and messages by reason.
        sites: The sites, by their client's number.
        stopped: The reason of the run's end. None means that it goes on.
        metrics: Metrics of the last evaluation by name; NaN, or None, means undefined.
        guarded: Number of updates that the guard has refused.
        skipped: Number of versions whose aggregation the guard has skipped.
        rollbacks: Number of returns to an earlier version.
        diverged: That the updates of most sites are refused. None means that they are not, or not known.
        privacy: What the busiest client has spent, as `Summary.privacy`. None without noise.
        helpers: The helpers. None without secure aggregation.
        begins_with: Number of sites that the run waits for before it begins. None means that it has begun.
        mirror: The mirror. None means that there is none.
    """

    run: str
    label: str
    algorithm: str
    now: float
    version: int
    running: int
    arrived: int
    aggregated: int
    dropped: int
    lost: int
    bytes_up: int
    bytes_down: int
    rejected: dict[str, int]
    sites: tuple[SiteView, ...]
    stopped: str | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    guarded: int = 0
    skipped: int = 0
    rollbacks: int = 0
    diverged: str | None = None
    privacy: Mapping[str, float] | None = None
    helpers: HelpersView | None = None
    begins_with: int | None = None
    mirror: MirrorView | None = None

    @property
    def there(self) -> int:
        """Number of sites that take part at the moment."""
        return sum(site.state not in ABSENT for site in self.sites)

    @property
    def waits_for(self) -> str | None:
        """The sites for which the run waits before it begins, in words. None means that it has begun."""
        if self.begins_with is None or self.stopped is not None:
            return None
        return f"waiting for {self.begins_with} sites, {self.there} there"

    @property
    def alarms(self) -> list[str]:
        """Alarms for an operator, each in one line."""
        counted = {
            "updates refused by the guard": self.guarded,
            "versions skipped": self.skipped,
            "returns to an earlier version": self.rollbacks,
        }
        texts = [f"{what}: {count}" for what, count in counted.items() if count]
        texts += [
            f"updates of {site.name} all point the same way ({site.persistence:.2f}) and are {site.size:.3g} "
            "times as large as those of the median site: look at what it trains on"
            for site in self.sites
            if site.leads_away
        ]
        if self.mirror is not None and self.mirror.problem is not None:
            texts.append(f"the mirror {self.mirror.directory} is behind: {self.mirror.problem}")
        return texts if self.diverged is None else [*texts, self.diverged]


def with_enrolled(snapshot: Snapshot, enrolled: Collection[str]) -> Snapshot:
    """The snapshot with the sites that are enrolled and have not come, and with those that are no more.

    The server refuses the next message of a site that is enrolled no more, so it takes part no more from that
    moment on, though its task is lost only when its lease ends.

    Args:
        snapshot: A server at one moment.
        enrolled: Names of the sites that may take part. Empty means that every site may.
    """
    if not enrolled:
        return snapshot
    known = {site.name for site in snapshot.sites}
    sites = [site if site.name in enrolled else replace(site, state="revoked") for site in snapshot.sites]
    sites += [SiteView(-1, name, "expected") for name in sorted(enrolled) if name not in known]
    return replace(snapshot, sites=tuple(sites))
