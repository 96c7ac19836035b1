"""Deadlines of tasks: when a site that is alive is no longer waited for.

A task may take the least deadline, or `FACTOR` times what the site's speed predicts if that is longer. The
speed is the local steps per second of the site's last task, with all transfers; before its first one, that of
the slowest site. Before any site has delivered there is no deadline. A task that was brought back by its site
has none: no schedule waits for it.
"""

from math import inf

from offbeat.core.algorithm import Task
from offbeat.net.server.site_registry import Registry

FACTOR = 10.0


def deadlines(registry: Registry, tasks: list[Task], least: float | None, since: float) -> dict[int, float]:
    """The deadlines of tasks in training, in seconds of the run's clock, by client.

    Args:
        registry: The sites.
        tasks: The tasks in training.
        least: Seconds that every task may take. None means that there are no deadlines.
        since: No task counts as begun before this time, in seconds of the run's clock.
    """
    if least is None:
        return {}
    speeds = [site.speed for site in registry.sites.values() if site.speed > 0]
    slowest = min(speeds, default=0.0)
    by_client = {}
    for task in tasks:
        speed = registry.by_client[task.client].speed or slowest
        if not task.hold and not registry.assigned[task.id].brought_back:
            allowed = max(least, FACTOR * task.steps / speed) if speed > 0 else inf
            by_client[task.client] = max(task.started, since) + allowed
    return by_client
