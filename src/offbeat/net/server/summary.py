"""Snapshot of a coordinator."""

from math import inf

from offbeat.net.monitor.snapshot import SiteState, SiteView, Snapshot, ended
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.site_registry import SiteRecord


def snapshot(coordinator: Coordinator, label: str, title: str = "") -> Snapshot:
    """The snapshot of a server.

    Args:
        coordinator: The run's coordinator.
        label: What the run is called; empty means the algorithm's name.
        title: The title of its recipe. Empty means none.
    """
    c, engine = coordinator, coordinator.driver.engine
    sizes = c.driver.directions.sizes()
    sites = tuple(_view(c, site, sizes.get(site.client)) for site in c.registry.sites.values())
    if c.stopped is not None:
        sites = tuple(ended(site) for site in sites)
    return Snapshot(
        run=c.info.run,
        label=label or c.algorithm.name,
        title=title,
        algorithm=c.algorithm.name,
        now=c.now,
        version=c.server.version,
        running=c.server.running if c.stopped is None else 0,
        **c.server.counts,
        bytes_up=engine.bytes_up,
        bytes_down=engine.bytes_down,
        unused_bytes=c.unused_bytes,
        rejected=dict(c.rejected),
        sites=sites,
        stopped=c.stopped,
        metrics=c.evaluations.last_metrics,
        guarded=c.rejected["guard"],
        skipped=c.driver.skipped,
        rollbacks=c.driver.rollbacks,
        warning=c.driver.collapse.warning,
        diverged=c.tensors.guard.diverged if c.tensors.guard is not None else None,
        privacy=engine.ledger.summary() if engine.ledger is not None else None,
        helpers=None if c.helpers is None else c.helpers.view,
        begins_with=c.options.clients if c.driver.began == inf else None,
        mirror=None,  # which the coordinator does not know
        began=None if c.driver.began == inf else c.driver.began,
    )


def _view(coordinator: Coordinator, site: SiteRecord, size: float | None) -> SiteView:
    task = coordinator.server.tasks.get(site.client)
    state: SiteState = "idle"
    if not (site.present and site.connected):
        state = "away"
    elif task is not None:
        state = "waiting" if task.ready else "training"
    number, steps = (task.id, task.steps) if task is not None else (None, 0)
    return SiteView(
        site.client, site.name, state, site.samples, number, site.steps_done, steps,
        site.speed, site.staleness, site.updates, site.last_seen,
        persistence=coordinator.driver.directions.persistence(site.client), size=size,
        times=coordinator.driver.times.shares(site.client, coordinator.now),
    )  # fmt: skip
