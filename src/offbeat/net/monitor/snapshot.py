"""Snapshot of a running server: its counts and its sites, for the live page and Prometheus."""

from dataclasses import dataclass
from typing import Literal

SiteState = Literal["idle", "training", "waiting", "away"]


@dataclass(slots=True)
class SiteView:
    """One site: "waiting" holds an update it may not send yet; "away" is silent, with its lease not over.

    Times are seconds of the run's clock. `speed` is local steps per second of its last task (none yet: 0),
    `staleness` that of its last update (none yet: −1).
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
    last_seen: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A server at one moment. `rejected` counts refused updates and messages by reason."""

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
