"""Direction and size of sites' updates: who leads the model away in small steps is seen."""

import numpy as np
import pytest
import torch

from offbeat.net.monitor.snapshot import SiteView, Snapshot
from offbeat.net.server.site_directions import COORDINATES, ENOUGH, SiteDirections


def directions(steps: int = 1, parameters: int = 5000) -> SiteDirections:
    """Three sites: two whose updates are random, one that always goes the same way, ten times as far."""
    rng = torch.Generator().manual_seed(0)
    way = torch.randn(parameters, generator=rng)
    found = SiteDirections(parameters)
    looked_at = found.coordinates
    for _ in range(30):
        for client in (0, 1):
            update = torch.randn(parameters, generator=rng) * steps**0.5
            found.add(client, update.numpy()[looked_at], steps)
        found.add(2, 10 * way.numpy()[looked_at] * steps**0.5, steps)
    return found


@pytest.mark.parametrize("steps", [1, 16])
@pytest.mark.parametrize("parameters", [COORDINATES // 2, 5000])
def test_persistence_and_size(steps: int, parameters: int) -> None:
    found = directions(steps, parameters)
    for client in (0, 1):
        assert found.persistence(client) == pytest.approx(0.23, abs=0.05)
        assert found.sizes()[client] == pytest.approx(1, abs=0.1)
    assert found.persistence(2) == pytest.approx(1)
    assert found.sizes()[2] == pytest.approx(10, rel=0.1)


def test_nothing_is_said_of_a_few_updates() -> None:
    found = SiteDirections(3)
    assert found.persistence(0) is None
    assert found.sizes() == {}
    for _ in range(ENOUGH - 1):
        found.add(0, np.ones(3, np.float32), 1)
    assert found.persistence(0) is None
    assert found.sizes() == {}
    found.add(0, np.ones(3, np.float32), 1)
    assert found.persistence(0) == pytest.approx(1)


def test_updates_of_zeros_have_no_direction() -> None:
    found = SiteDirections(3)
    for _ in range(20):
        found.add(0, np.zeros(3, np.float32), 1)
        found.add(1, np.zeros(3, np.float32), 1)
    assert found.persistence(0) is None
    assert found.sizes() == {}


def test_huge_updates_are_no_error() -> None:
    found = SiteDirections(3)
    for _ in range(20):
        found.add(0, np.full(3, 3e38, np.float32), 1)
    assert found.persistence(0) == pytest.approx(1)


@pytest.mark.parametrize(
    ("persistence", "size", "told"), [(0.95, 18.0, True), (0.95, 2.0, False), (0.5, 18.0, False)]
)
def test_an_alarm_names_the_site(persistence: float, size: float, told: bool) -> None:
    site = SiteView(0, "north", persistence=persistence, size=size)
    numbers = dict.fromkeys(
        ("now", "version", "running", "arrived", "aggregated", "dropped", "lost", "bytes_up", "bytes_down"), 0
    )
    alarms = Snapshot("run", "", "fedavg", rejected={}, sites=(site,), **numbers).alarms
    assert alarms == told * [
        "updates of north all point the same way (0.95) and are 18 times as large as those of the median "
        "site: look at what it trains on"
    ]
