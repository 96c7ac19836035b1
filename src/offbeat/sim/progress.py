"""Progress of a simulation."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from offbeat.core.errors import UsageError
from offbeat.core.events import Metrics
from offbeat.sim.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is.

    Attributes:
        seconds: Virtual seconds.
        version: Version of the global model.
        tasks: Updates that have arrived.
        metrics: Metrics of the last evaluation by name.
        mean_staleness: Mean staleness of the updates that arrived, in versions.
        tasks_per_second: Tasks per real second since this process started or resumed the run.
        wall: Real seconds since then.
        done: Share of the way to the nearest limit, in [0, 1]; None means that no limit tells.
        privacy: What the busiest client has spent, as `Summary.privacy`. None without noise.
    """

    seconds: float
    version: int
    tasks: int
    metrics: Metrics
    mean_staleness: float
    tasks_per_second: float
    wall: float
    done: float | None
    privacy: Metrics | None = None

    @property
    def left(self) -> float | None:
        """Estimated real seconds to the end."""
        return None if not self.done else self.wall * (1 - self.done) / self.done


Watcher = Callable[[Progress], None]


def check_watcher(watch: object) -> None:
    """Raises `UsageError` for what can watch no progress, and is not None."""
    if watch is not None and not callable(watch):
        raise UsageError(f"watch = {watch!r:.60} is not allowed: give a function of a Progress, or None")


class ProgressMeter:
    """Measures a simulation's progress in real time."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._began = time.monotonic()
        self._tasks = simulation.server.counts["arrived"]
        self._done = self._share()

    def progress(self) -> Progress:
        """Where the simulation is now."""
        s = self._simulation
        arrived, wall = s.server.counts["arrived"], time.monotonic() - self._began
        share = self._share()
        resumed = (
            None if share is None or self._done is None else (share - self._done) / max(1 - self._done, 1e-9)
        )
        return Progress(
            seconds=s.now,
            version=s.server.version,
            tasks=arrived,
            metrics=s.evaluations.last_metrics,
            mean_staleness=s.engine.staleness_sum / max(arrived, 1),
            tasks_per_second=(arrived - self._tasks) / max(wall, 1e-9),
            wall=wall,
            done=resumed,
            privacy=s.engine.ledger.summary() if s.engine.ledger is not None else None,
        )

    def _share(self) -> float | None:
        s, until = self._simulation, self._simulation.engine.until
        limits = [until.seconds, until.versions, until.tasks]
        reached = [s.now, s.server.version, s.server.counts["arrived"]]
        shares = [now / limit for now, limit in zip(reached, limits, strict=True) if limit is not None]
        return min(1.0, max(shares)) if shares else None
