"""Snapshot of a running server: its counts and its sites, for the live page and Prometheus."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from offbeat.core.client_times import TimeShares
from offbeat.units import duration_text, size_text

SiteState = Literal["idle", "training", "waiting", "away", "expected", "revoked"]
ABSENT: frozenset[SiteState] = frozenset({"away", "expected", "revoked"})
"""States of a site that does not take part at the moment."""
PERSISTENT, LARGE = 0.9, 3.0
"""Share from which a site's persistence and size together are an alarm."""


@dataclass(frozen=True, slots=True)
class TransferView:
    """A message with tensors that is on its way.

    Attributes:
        what: The message, such as "the update of task 7".
        direction: "up" from the site, "down" to it.
        done: Bytes of its tensors that have gone or come.
        size: Bytes of all of them.
        connection: Number of the connection that carries it, among those that were seen to.
        seconds_left: Seconds until it is there, at its present rate. None means unknown.
    """

    what: str
    direction: Literal["up", "down"]
    done: int
    size: int
    connection: int = 1
    seconds_left: float | None = None

    @property
    def text(self) -> str:
        """The transfer in a line."""
        more = [f"connection {self.connection}"] if self.connection > 1 else []
        if self.seconds_left is not None:
            more.append(f"{duration_text(round(self.seconds_left))} left")
        text = f"{self.what}: {size_text(self.done)} of {size_text(self.size)} {self.direction}"
        return f"{text} ({', '.join(more)})" if more else text


@dataclass(slots=True)
class SiteView:
    """One site of a run.

    Attributes:
        client: Number of the site's client; −1 for a site that was never connected.
        name: Name of the site.
        state: A "waiting" site holds an update that it may not send yet. An "away" site was connected, and is
            silent or has left. An "expected" site is enrolled, and was never connected. A "revoked" site was
            connected, and is no longer enrolled.
        samples: Number of training samples.
        allowed: Least and largest number of samples that the site's enrolment allows. None means any number.
        task: Number of the site's task. None means that the site has no task.
        steps_done: Local steps done of the task.
        steps: Local steps of the task.
        speed: Local steps per second of the site's last task; 0 before the first task has ended.
        staleness: Staleness of the site's last update, in versions; −1 before the first update.
        updates: Number of the site's updates that the server has accepted.
        last_seen: Time of the site's last message, in seconds of the run's clock. None means never, or that
            the run has ended.
        persistence: Agreement of the directions of the site's updates, from 0 to 1. None means that there are
            too few updates, or that it is unknown.
        size: Mean norm of the site's updates, relative to the median site. None means unknown.
        transfers: Its messages with tensors that are on their way.
        times: What the site has done with its time. None means that no task of it has ended.
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
    transfers: tuple[TransferView, ...] = ()
    times: TimeShares | None = None

    @property
    def leads_away(self) -> bool:
        """Whether the site's updates all point the same way and are much larger than other sites' updates."""
        persistence, size = self.persistence, self.size
        return persistence is not None and size is not None and persistence >= PERSISTENT and size >= LARGE


@dataclass(frozen=True, slots=True)
class HelpersView:
    """The helpers of a run with secure aggregation.

    Attributes:
        text: The helpers, which of them are away, and which release waits, in one line.
        connected: Number of connected helpers. None means unknown.
        waiting: Number of the release that waits for its sum. None means that no release waits.
        names: Names of the helpers, also of those that others have replaced.
        formed: Whether the helpers have formed their committee, without which the run does not begin.
        problem: What keeps helpers from helping: releases keep failing, or one has lost a helper. None means
            that nothing does.
        stuck: Whether no release is made because of it.
    """

    text: str
    connected: int | None = None
    waiting: int | None = None
    names: tuple[str, ...] = ()
    formed: bool = True
    problem: str | None = None
    stuck: bool = False


def helpers_text(helpers: Iterable[str], waiting: int | None, *, formed: bool) -> str:
    """The helpers and the state of their committee, in one line.

    Args:
        helpers: The helpers, each with what is known of it.
        waiting: Number of the release that waits for its sum. None means that no release waits.
        formed: Whether the helpers have formed their committee.
    """
    line = f"helpers: {', '.join(helpers)}"
    if not formed:
        return f"{line}; the committee is formed when all are there"
    return line if waiting is None else f"{line}; release {waiting} waits for them"


@dataclass(frozen=True, slots=True)
class MirrorView:
    """The mirror of a server's directory.

    Attributes:
        directory: Directory of the mirror.
        problem: Why the mirror lacks something that was acknowledged. None means that it has everything.
    """

    directory: str
    problem: str | None = None


def title_of(recipe: Mapping[str, object] | None) -> str:
    """The title of a run's recipe; empty without a recipe or a title."""
    found = (recipe or {}).get("title")
    return found if isinstance(found, str) else ""


def ended(site: SiteView) -> SiteView:
    """The site after the end of the run: it has no task any more, and nobody waits for its messages."""
    state: SiteState = site.state if site.state in ABSENT else "idle"
    return replace(site, state=state, task=None, steps_done=0, steps=0, last_seen=None)


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
        arrived: Number of updates that the server has accepted.
        aggregated: Number of updates that are part of a version.
        dropped: Number of accepted updates that the algorithm chose not to use.
        lost: Number of tasks that ended without an accepted update, except those that the algorithm stopped.
        bytes_up: Bytes of updates from sites.
        bytes_down: Bytes of models to sites.
        rejected: Number of refused updates and messages by reason.
        sites: The sites, in the order of their clients' numbers.
        stopped: Why the run has ended. None means that the run has not ended.
        metrics: Metrics of the last evaluation by name; NaN, or None, means undefined.
        guarded: Number of updates that the guard has refused.
        skipped: Number of versions that were skipped: refused by the guard, or too large to be sent.
        rollbacks: Number of returns to an earlier version.
        warning: Why the model may have become worse, where the run does not go back by itself. None means no
            reason.
        diverged: A sentence that says that the updates of most sites are refused. None means that they are
            not, or that this is unknown.
        privacy: What the busiest client has spent, as in `Summary.privacy`. None means a run without noise.
        helpers: The helpers. None means a run without secure aggregation.
        begins_with: Number of sites for which the run waits before it begins. None means that it has begun.
        mirror: The mirror. None means a run without a mirror.
        began: When the run began, in seconds of its clock. None means that it has not, or that this is
            unknown.
        title: Title of the run's recipe. Empty means none.
        discarded: Number of tasks that the algorithm stopped before their update was accepted.
        unused_bytes: Bytes of updates that came although their tasks had been stopped, since the server's
            start.
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
    warning: str | None = None
    diverged: str | None = None
    privacy: Mapping[str, float] | None = None
    helpers: HelpersView | None = None
    begins_with: int | None = None
    mirror: MirrorView | None = None
    began: float | None = None
    title: str = ""
    discarded: int = 0
    unused_bytes: int = 0

    @property
    def held(self) -> int:
        """Number of accepted updates that wait for an aggregation."""
        return max(0, self.arrived - self.aggregated - self.dropped)

    @property
    def there(self) -> int:
        """Number of sites that take part at the moment."""
        return sum(site.state not in ABSENT for site in self.sites)

    @property
    def waits_for(self) -> str | None:
        """The sites and helpers for which the run waits before it begins. None means that it has begun."""
        if self.begins_with is None or self.stopped is not None:
            return None
        sites = f"waiting for {self.begins_with} sites, {self.there} there"
        return sites if self.helpers is None or self.helpers.formed else f"{sites}, and for all helpers"

    @property
    def seconds(self) -> float:
        """Seconds since the run began; before that, those of its clock."""
        return self.now if self.began is None else max(0.0, self.now - self.began)

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
        if self.warning is not None:
            texts.append(f"the model: {self.warning}")
        if self.mirror is not None and self.mirror.problem is not None:
            texts.append(f"the mirror {self.mirror.directory} is behind: {self.mirror.problem}")
        if self.helpers is not None and self.helpers.problem is not None:
            texts.append(self.helpers.problem)
        return texts if self.diverged is None else [*texts, self.diverged]


def with_enrolled(snapshot: Snapshot, enrolled: Collection[str] | None) -> Snapshot:
    """The snapshot with the states "expected" and "revoked", which follow from the enrolment.

    The server refuses the next message of a site that is no longer enrolled. So such a site takes no part
    from that moment on, although its task is lost only when its lease ends.

    Args:
        snapshot: A server at one moment.
        enrolled: Names of the sites and helpers that may take part. None means that everybody may.
    """
    if enrolled is None:
        return snapshot
    known = {site.name for site in snapshot.sites}
    if snapshot.helpers is not None:
        known.update(snapshot.helpers.names)
    expected = tuple(SiteView(-1, name, "expected") for name in sorted(enrolled) if name not in known)
    shown = with_revoked(snapshot, known - set(enrolled))
    return replace(shown, sites=shown.sites + expected)


def with_revoked(snapshot: Snapshot, names: Collection[str]) -> Snapshot:
    """The snapshot with the state "revoked" for sites of these names."""
    sites = (replace(site, state="revoked") if site.name in names else site for site in snapshot.sites)
    return replace(snapshot, sites=tuple(sites))
