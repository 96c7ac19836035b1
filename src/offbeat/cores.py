"""The cores that this process may use: those of its affinity mask, within its control groups' CPU quota."""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from math import ceil
from pathlib import Path

_ROOT = Path("/")


def usable_cores() -> int:
    """Number of cores, at least 1; a quota of 1.5 cores counts as 2."""
    # Python 3.11 has no os.process_cpu_count, and later ones know no quota.
    has_mask = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_mask else os.cpu_count() or 1
    quota = cpu_quota(_ROOT)
    return cores if quota is None else max(1, min(cores, ceil(quota)))


@cache
def cpu_quota(root: Path) -> float | None:
    """The smallest quota of this process's control groups and of those above them, in cores.

    Args:
        root: The file system's root.

    Returns:
        Cores; None where there is no quota, or no control group.
    """
    quotas = []
    for folder in _groups(root):
        with suppress(OSError, ValueError):
            if (folder / "cpu.max").is_file():
                # Version 2: "150000 100000", or "max 100000".
                quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii")
                period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii")
            if quota != "max" and int(quota) > 0 < int(period):
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _groups(root: Path) -> Iterator[Path]:
    """The folders of this process's control groups, and those above them."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        # Version 2 has one hierarchy, "0::/PATH"; version 1 one for each of its controllers.
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / controllers
        # In a container, the path may be one outside, and the top is the container's own group.
        group = top / path.lstrip("/")
        yield from (place for place in (group, *group.parents) if place.is_relative_to(top))
