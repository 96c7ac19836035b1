"""A run repeated without the updates of one site, from those that a server has kept."""

from pathlib import Path

import pytest
import torch

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.experiment import PreparedRun
from offbeat.net.server.stored_updates import UPDATES, StoredUpdates, damaged_updates
from offbeat.net.server.without_site import contribution, replay_without
from tests.net.server.test_rollback import ALGORITHMS, LAYOUT, MODEL, Federation, collapse

NOBODY = 99


def prepared(federation: Federation) -> PreparedRun:
    server = federation.server
    return PreparedRun(server.experiment, federation.count, federation.initial, server.algorithm)


def checkpoint(federation: Federation) -> None:
    assert federation.store is not None
    federation.store.checkpoint(federation.server)


def by_hand(federation: Federation, without: str) -> torch.Tensor:
    """The model of FedBuff without a site: w + Σ s(τ) Δ / number, over the updates that are left."""
    clients = {name: site.client for name, site in federation.server.registry.sites.items()}
    sizes = iter(federation.sizes)
    versions, current = {0: torch.zeros(3)}, torch.zeros(3)
    held: dict[int, tuple[int, torch.Tensor, int]] = {}
    for row in federation.rows:
        assert row.version is not None
        if row.name == "arrived":
            assert row.task is not None
            assert row.client is not None
            assert row.staleness is not None
            held[row.task] = row.client, torch.tensor([next(sizes), 0.0, 0.0]), row.staleness
        elif row.name == "aggregate":
            used = [held[task] for task in (row.data or {})["tasks"] if task in held]
            used = [update for update in used if update[0] != clients[without]]
            if used:
                step = sum((delta * (1 + stale) ** -0.5 for _, delta, stale in used), torch.zeros(3))
                current = current + step / len(used)
            versions[row.version] = current
        elif row.name == "rolled_back":
            to = (row.data or {})["to"]
            current = versions[to]
            versions[row.version] = current
    return current


class Recorded(Federation):
    """A federation that notes the size of each update that it sends."""

    sizes: list[float]

    def update(self, name: str, size: float) -> None:
        self.sizes = [*getattr(self, "sizes", []), size]
        super().update(name, size)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("die", [None, "after"])
def test_without_nobody_it_is_the_run_itself(name: str, die: str | None, tmp_path: Path) -> None:
    """After a collapse, a rollback, checkpoints and a crash, to the last bit."""
    federation = Federation(name, tmp_path, keep_updates=True)
    federation.all_send(0.3)
    checkpoint(federation)
    federation.die = die
    federation.all_send(0.3)
    collapse(federation)
    checkpoint(federation)
    federation.all_send(0.2)
    assert federation.named("rolled_back")
    found = replay_without(ob.read_run(tmp_path), prepared(federation), NOBODY)
    assert (found.start, found.version) == (0, federation.server.server.version)
    assert torch.equal(found.model.values, federation.server.tensors.model.values)
    assert torch.equal(found.model.shared, federation.server.tensors.model.shared)


def test_without_a_site_each_version_is_made_of_what_else_it_had(tmp_path: Path) -> None:
    federation = Recorded("fedbuff", tmp_path, keep_updates=True)
    for size in (0.3, 0.2, 0.1):
        federation.all_send(size)
        checkpoint(federation)
    record, run = ob.read_run(tmp_path), prepared(federation)
    models = {name: replay_without(record, run, client).model for client, name in enumerate(federation.said)}
    for name, model in models.items():
        torch.testing.assert_close(model.values, by_hand(federation, name))
    assert len({tuple(model.values.tolist()) for model in models.values()}) > 1
    assert len(list(StoredUpdates(record))) == 9


def test_a_rollback_goes_to_the_version_that_is_there_without_the_site(tmp_path: Path) -> None:
    federation = Recorded("fedbuff", tmp_path, keep_updates=True)
    for _ in range(3):
        federation.all_send(0.3)
    federation.update("site-0", 500.0)
    for _ in range(6):
        federation.all_send(0.05)
    assert federation.named("rolled_back")
    found = replay_without(ob.read_run(tmp_path), prepared(federation), 0)
    torch.testing.assert_close(found.model.values, by_hand(federation, "site-0"))
    assert 0 < float(found.model.values[0]) < 5


def test_large_updates_are_kept_in_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.net.server.durable_store.SMALL", 0)
    federation = Federation("fedbuff", tmp_path, keep_updates=True)
    for _ in range(3):
        federation.all_send(0.3)
        checkpoint(federation)
    record = ob.read_run(tmp_path)
    found = replay_without(record, prepared(federation), NOBODY)
    assert torch.equal(found.model.values, federation.server.tensors.model.values)
    assert list(damaged_updates(record)) == []
    data = bytearray((tmp_path / UPDATES).read_bytes())
    data[60] ^= 1
    (tmp_path / UPDATES).write_bytes(data)
    assert len(list(damaged_updates(record))) == 1


def test_from_a_checkpoint_before_the_site_came(tmp_path: Path) -> None:
    """Without kept updates, those since the last checkpoint are there."""
    federation = Federation("fedasync", tmp_path)
    federation.update("site-1", 0.3)
    checkpoint(federation)
    federation.update("site-0", 0.3)
    federation.update("site-2", 0.2)
    record, run = ob.read_run(tmp_path), prepared(federation)
    found = replay_without(record, run, 0)
    assert (found.start, found.version) == (1, 3)
    assert not torch.equal(found.model.values, federation.server.tensors.model.values)
    nobody = replay_without(record, run, NOBODY)
    assert torch.equal(nobody.model.values, federation.server.tensors.model.values)
    says = "keeps no updates from before version 1, which holds updates of this site since version 0"
    with pytest.raises(UsageError, match=says):
        replay_without(record, run, 1)


def test_served_without_the_option_it_forgets_them(tmp_path: Path) -> None:
    federation = Federation("fedasync", tmp_path, keep_updates=True)
    federation.all_send(0.3)
    checkpoint(federation)
    assert len(StoredUpdates(ob.read_run(tmp_path)).tasks()) == 3
    federation.given = {**federation.given, "keep_updates": False}
    federation.die = "after"
    federation.all_send(0.3)
    assert StoredUpdates(ob.read_run(tmp_path)).tasks() <= {4, 5}
    assert federation.server.server.version == 6


def test_another_initial_model_is_refused(tmp_path: Path) -> None:
    federation = Federation("fedasync", tmp_path, keep_updates=True)
    assert federation.store is not None
    other = ob.Model(LAYOUT, torch.ones(3), MODEL.integers, MODEL.shared)
    run = PreparedRun(federation.server.experiment, 3, other, federation.server.algorithm)
    record = ob.read_run(tmp_path)
    record.meta["initial"] = MODEL.digest()
    with pytest.raises(ob.RunError, match="was started with another initial model"):
        replay_without(record, run, 0)


def test_what_a_site_has_had_a_part_in(tmp_path: Path) -> None:
    federation = Federation("fedbuff", tmp_path)
    for _ in range(2):
        federation.all_send(0.3)
    record = ob.read_run(tmp_path)
    with pytest.raises(UsageError, match="holds a simulated run, of which no update is stored"):
        contribution(record, "site-1")
    record.meta["plan"] = {}
    part = contribution(record, "site-1")
    assert (part.client, part.updates, part.of, part.last) == (1, 2, 6, 3)
    used = [row.version for row in federation.rows if row.name == "aggregate" and 1 in row.flat()["clients"]]
    assert list(part.versions) == used
    with pytest.raises(UsageError, match=r"has no site site-9; did you mean"):
        contribution(record, "site-9")
