"""Snapshot of a coordinator."""

from offbeat.net.monitor.snapshot import SiteState, SiteView, Snapshot
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.registry import SiteRecord


def snapshot(coordinator: Coordinator, label: str) -> Snapshot:
    """What a server shows of itself."""
    c, counts = coordinator, coordinator.server.counts
    sites = tuple(_view(c, site) for site in c.registry.sites.values() if site.present)
    return Snapshot(
        run=c.run,
        label=label or c.algorithm.name,
        algorithm=c.algorithm.name,
        now=c.now,
        version=c.server.version,
        running=c.server.running,
        arrived=counts["arrived"],
        aggregated=counts["aggregated"],
        dropped=counts["dropped"],
        lost=counts["lost"],
        bytes_up=c.driver.engine.bytes_up,
        bytes_down=c.driver.engine.bytes_down,
        rejected=dict(c.rejected),
        sites=sites,
        stopped=c.stopped,
    )


def _view(coordinator: Coordinator, site: SiteRecord) -> SiteView:
    task = coordinator.server.tasks.get(site.client)
    state: SiteState = "idle"
    if not site.connected:
        state = "away"
    elif task is not None:
        state = "waiting" if task.ready else "training"
    number, steps = (task.id, task.steps) if task is not None else (None, 0)
    return SiteView(
        site.client, site.name, state, site.samples, number, site.steps_done, steps,
        site.speed, site.staleness, site.updates, site.last_seen,
    )  # fmt: skip
