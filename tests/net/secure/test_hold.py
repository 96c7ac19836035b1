"""What a run waits for, and that one without secure aggregation waits for nobody."""

from pathlib import Path

import pytest
import torch

import offbeat as ob
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.net.messages import Register, Rejected
from offbeat.net.server.driver import Hold
from offbeat.net.server.handlers import RunInfo
from tests.net.secure.secure_federation import HELPERS, TASKS, SecureFederation, drive
from tests.net.support import coordinator_from, terms_of

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_run_without_secure_aggregation_has_no_helpers_and_waits_for_nobody() -> None:
    initial = Model(Layout.flat(2), torch.zeros(2), torch.zeros(0, dtype=torch.int64))
    until = ob.Until(versions=9)
    coordinator = coordinator_from(
        ob.fedasync(steps=1), initial, terms_of(clients=1, until=until), RunInfo("run", {})
    )
    assert coordinator.helpers is None
    coordinator.receive(0.0, "anna", Register(0, 0, public_key=bytes(32)))
    (said,) = (message for _, message in coordinator.take().messages)
    assert isinstance(said, Rejected)
    assert said.reason.startswith("anna is not a helper of this run, which has none")
    coordinator.receive(1.0, "north", Register(10, 1))
    assert coordinator.driver.server.begun
    assert coordinator.driver.hold is None
    assert not coordinator.postpones("north")


def test_sites_are_not_processed_while_a_release_waits_for_its_sum(tmp_path: Path) -> None:
    f = SecureFederation(tmp_path)
    f.answers["a"] = lambda answer: None
    drive(f, 60)
    assert f.coordinator.driver.hold is Hold.RELEASE
    assert f.coordinator.postpones("site-0")
    assert not any(f.coordinator.postpones(name) for name in HELPERS)
    f.site_registers("site-0")
    assert f.idle
    del f.answers["a"]
    f.coordinator.disconnected(f.now, "a")
    f.registers("a")
    drive(f, 600)
    assert f.coordinator.stopped is not None
    assert f.coordinator.driver.hold is None


def test_a_run_waits_for_a_new_committee(tmp_path: Path) -> None:
    f = SecureFederation(tmp_path)
    while not (f.journal("released") and f.coordinator.driver.hold is None):
        drive(f, 1)
    f.names = ("a", "b", "d")
    f.away.update(f.names)
    f.die(helpers=f.names)
    drive(f, 20)
    assert f.coordinator.driver.hold is Hold.COMMITTEE
    assert f.coordinator.postpones("site-0")
    assert f.coordinator.next_due() > f.now
    f.away.clear()
    for name in f.names:
        f.restart_helper(name, "new.db")
        f.registers(name)
    drive(f, 600)
    assert f.coordinator.stopped == f"reached {TASKS} client tasks"
