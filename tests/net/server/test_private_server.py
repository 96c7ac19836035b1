"""A server of a run with noise: seeds before releases, deaths at every write, budgets, participation."""

import hashlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.algorithms.privacy.private import complete_privacy, with_privacy
from offbeat.core.commands import Aggregate
from offbeat.core.errors import DamageError, RunError, UsageError
from offbeat.core.journal import Row
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.core.privacy.noise import discrete_gaussian
from offbeat.core.privacy.privacy_options import privacy_text
from offbeat.net.messages import Leave, Register, Registered, Rejected, TaskAssignment, UpdateSubmission
from offbeat.net.monitor.prometheus import exposition
from offbeat.net.secure.release_seeds import SECRETS, FreshSeeds, SecretsFile
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.effects import Effects
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.summary import snapshot
from tests.net.support import coordinator_from, terms_of
from tests.sampling import thorough

SIZE, SITES, TASKS = 6, 4, 30
META = {"label": "x", "algorithm": {"name": "fedbuff"}, "seed": 0, "clients": SITES}
pytestmark = pytest.mark.usefixtures("one_thread")


def options_of(bands: int = 1, epsilon: float | None = 50.0) -> ob.Privacy:
    noise = ob.Noise(multiplier=2, bands=bands, budget=ob.Budget(epsilon=epsilon, delta=1e-3))
    return ob.Privacy(clip=1.0, least=2, noise=noise)


class Recorded:
    """Bytes that are the same for the same release, however often its process dies; counts the draws."""

    def __init__(self) -> None:
        self.drawn: list[bytes] = []

    def __call__(self, size: int) -> bytes:
        self.drawn.append(hashlib.shake_256(len(self.drawn).to_bytes(8, "big")).digest(size))
        return self.drawn[-1]


def coordinator_of(privacy: ob.Privacy, draw: Callable[[int], bytes], first: float = 0.0) -> Coordinator:
    algorithm = ob.fedbuff(size=2, steps=1)
    complete = complete_privacy(privacy, algorithm, SITES)
    initial = Model(Layout.flat(SIZE), torch.full((SIZE,), first), torch.zeros(0, dtype=torch.int64))
    wanted = terms_of(clients=SITES, lease=1e9, until=ob.Until(tasks=TASKS))
    return coordinator_from(
        with_privacy(algorithm, complete), initial, wanted, RunInfo("run", {}),
        release_plan=ReleasePlan(complete, SIZE, SITES), seeds=FreshSeeds(draw),
    )  # fmt: skip


def update_of(task: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(task)
    return torch.randn(SIZE, generator=generator) * (3 if task % 3 else 0.2)


class Federation:
    """Sites that answer what they have heard, one at a time, and the server's directory."""

    def __init__(self, directory: Path, privacy: ob.Privacy) -> None:
        self.directory, self.privacy, self.draw = directory, privacy, Recorded()
        self.coordinator = coordinator_of(privacy, self.draw)
        self.store = DurableStore(directory, self.coordinator, META)
        self.tasks: dict[str, TaskAssignment] = {}
        self.models: dict[int, torch.Tensor] = {}  # every version that was sent
        self.seeds: dict[int, bytes] = {}  # every seed that was durable, by release
        self.rows: list[Row] = []
        self.now = 0.0

    def step(self, i: int) -> Effects:
        """The next message: who has a task delivers the oldest; before, all register."""
        self.now = float(i)
        if i < SITES:
            self.coordinator.receive(self.now, f"site-{i}", Register(20, 4))
        elif self.tasks:
            name = min(self.tasks, key=lambda own: self.tasks[own].task)
            task = self.tasks[name].task
            message = UpdateSubmission(task, 1, update_of(task), torch.zeros(0, dtype=torch.int64))
            self.coordinator.receive(self.now, name, message)
        return self.coordinator.take()

    def deliver(self, effects: Effects) -> None:
        self.rows += effects.rows
        for row in effects.rows:
            if row.name == "arrived":
                self.tasks = {n: t for n, t in self.tasks.items() if t.task != row.task}
        for name, message in effects.messages:
            if isinstance(message, TaskAssignment):
                self.tasks[name] = message
                sent = self.models.setdefault(message.base, message.model.values)
                assert torch.equal(sent, message.model.values), message.base
            elif isinstance(message, Rejected):
                self.tasks.pop(name, None)

    def die(self) -> None:
        """The process is gone; another one takes its place, with another initial model."""
        self.store.close()
        self.coordinator = coordinator_of(self.privacy, self.draw, first=9.0)
        self.store = DurableStore(self.directory, self.coordinator)

    def secrets(self) -> dict[int, bytes]:
        database = sqlite3.connect(self.directory / SECRETS)
        try:
            return dict(database.execute("SELECT version, seed FROM seeds").fetchall())
        finally:
            database.close()


def run(
    directory: Path, privacy: ob.Privacy, deaths: Mapping[int, str] = {}, checkpoints: Sequence[int] = ()
) -> Federation:
    """A whole run, with deaths at messages: before the first durable write, after it, or after the last."""
    f = Federation(directory, privacy)
    left, i = dict(deaths), 0
    while f.coordinator.stopped is None and i < 200:
        effects = f.step(i)
        for seed in effects.seeds:
            assert not [row for row in f.rows if row.name == "aggregate" and row.version == seed.version]
        death = left.pop(i, None)
        if death == "between":  # the seeds are durable, the journal is not
            f.store._files.secrets.add(effects.seeds)
        elif death != "before":
            f.store.commit(effects)
            f.seeds |= f.secrets()
        if death == "in checkpoint":  # the tensors are durable, the seeds are not forgotten
            f.store._files.secrets.forget = lambda: None  # type: ignore[method-assign]
            f.store.checkpoint(f.coordinator)
        elif i in checkpoints and death is None:
            f.store.checkpoint(f.coordinator)
            assert f.secrets() == {}
        if death is not None:
            f.die()
            assert set(f.secrets()) == set()  # its first checkpoint has all that was durable
        if death in ("before", "between"):
            continue  # nobody has heard of it: the same message comes again
        f.deliver(effects)
        i += 1
    f.store.finish(f.coordinator, {})
    assert not (directory / SECRETS).exists()
    return f


@pytest.mark.parametrize("bands", [1, *thorough(3)])
def test_a_death_before_and_after_each_durable_write(bands: int, tmp_path: Path) -> None:
    """No release has two noises, no noise is in two releases, and what was sent stays true."""
    privacy, numbers = options_of(bands), count()
    whole = run(tmp_path / "whole", privacy)
    assert len(whole.seeds) > 12
    releases = {row.version: row.data["tasks"] for row in whole.rows if row.name == "aggregate" and row.data}
    at = range(SITES, SITES + TASKS, 5)
    for death in ("before", "between", "after", "in checkpoint"):
        broken = run(tmp_path / f"{next(numbers)}", privacy, dict.fromkeys(at, death), at[::2])
        same = {r.version: r.data["tasks"] for r in broken.rows if r.name == "aggregate" and r.data}
        assert same == releases
        assert len(set(broken.draw.drawn)) == len(broken.draw.drawn)
        assert len(set(broken.seeds.values())) == len(broken.seeds) == len(releases)
        if death in ("after", "in checkpoint"):  # as many draws as releases: the same bytes to the end
            assert broken.draw.drawn == whole.draw.drawn
            a, b = broken.coordinator.tensors.model, whole.coordinator.tensors.model
            assert torch.equal(a.values, b.values)
            assert [row.data for row in broken.rows] == [row.data for row in whole.rows]


def test_a_server_that_never_checkpoints_makes_its_releases_again(tmp_path: Path) -> None:
    """All releases since the beginning follow from the journal, the updates and the seeds."""
    f = Federation(tmp_path / "d", options_of())
    for i in range(20):
        effects = f.step(i)
        f.store.commit(effects)
        f.deliver(effects)
    seeds, model = f.secrets(), f.coordinator.tensors.model.values
    assert sorted(seeds) == list(range(1, len(seeds) + 1))
    assert len(seeds) > 5
    assert (tmp_path / "d" / SECRETS).stat().st_mode & 0o777 == 0o600
    for seed in seeds.values():
        assert seed not in (tmp_path / "d" / "run.db").read_bytes()
    f.die()
    assert torch.equal(f.coordinator.tensors.model.values, model)
    f.store.close()


def committed(directory: Path) -> Federation:
    f = Federation(directory, options_of())
    for i in range(14):
        effects = f.step(i)
        f.store.commit(effects)
        f.deliver(effects)
    f.store.close()
    return f


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("DELETE FROM seeds WHERE version = 2", "is not there"),
        ("UPDATE seeds SET tasks = '[7, 8]'", "is of other updates"),
    ],
)
def test_a_release_without_its_seed_fails_in_one_line(statement: str, what: str, tmp_path: Path) -> None:
    f = committed(tmp_path / "d")
    with sqlite3.connect(tmp_path / "d" / SECRETS) as database:
        database.execute(statement)
        database.execute("DELETE FROM checksums")
    database.close()
    with pytest.raises(RunError, match=rf"cannot be made again: its seed in secrets\.db {what}") as error:
        DurableStore(tmp_path / "d", coordinator_of(f.privacy, f.draw))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("what", ["changed", "deleted"])
def test_a_seed_that_is_not_as_it_was_written_makes_no_release(what: str, tmp_path: Path) -> None:
    """With a bit of it flipped the release would have other noise than the one that was sent."""
    f = committed(tmp_path / "d")
    path = tmp_path / "d" / SECRETS
    if what == "changed":
        octets, seed = path.read_bytes(), f.secrets()[2]
        assert octets.count(seed) == 1
        path.write_bytes(octets.replace(seed, bytes([seed[0] ^ 1]) + seed[1:]))
    else:
        with sqlite3.connect(path) as database:
            database.execute("DELETE FROM seeds WHERE version = 2")
        database.close()
    told = "does not match its checksum" if what == "changed" else "is missing"
    with pytest.raises(DamageError, match=rf"secrets\.db cannot be read \(table seeds, version 2, {told}\)"):
        DurableStore(tmp_path / "d", coordinator_of(f.privacy, f.draw))


def test_a_damaged_update_is_not_left_out_of_a_release(tmp_path: Path) -> None:
    """Two sums with the same noise, with and without an update, would give it away."""
    f = committed(tmp_path / "d")
    with sqlite3.connect(tmp_path / "d" / "run.db") as database:
        database.execute("UPDATE updates SET tensors = x'00' WHERE task = 0")
    database.close()
    with pytest.raises(RunError, match=r"update of task 0 is damaged .* no release is made again without"):
        DurableStore(tmp_path / "d", coordinator_of(f.privacy, f.draw))


def test_a_release_has_one_seed(tmp_path: Path) -> None:
    file = SecretsFile(tmp_path)
    seeds = FreshSeeds()
    release = Aggregate((0, 1), version=1)
    assert seeds.noise(release) == seeds.noise(release) != FreshSeeds().noise(release)
    drawn = seeds.take()
    assert [own.version for own in drawn] == [1]
    assert drawn[0].seed.hex() not in repr(drawn[0])
    file.add(drawn)
    with pytest.raises(RunError, match=r"secrets\.db"):
        file.add(drawn)
    assert file.read()[1] == drawn[0]
    file.close()


def test_a_file_of_seeds_that_cannot_be_made_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / SECRETS).mkdir()
    with pytest.raises(UsageError, match=rf"cannot write to {tmp_path}: secrets.db is a link, a folder"):
        SecretsFile(tmp_path)


# ---- budget ----


def test_a_spent_client_leaves_for_good_and_the_run_ends(tmp_path: Path) -> None:
    privacy = options_of(epsilon=2.0)
    f = Federation(tmp_path / "d", privacy)
    said: list[tuple[str, Any]] = []
    for i in range(100):
        effects = f.step(i)
        f.store.commit(effects)
        f.deliver(effects)
        said += effects.messages
        if i % 7 == 6:
            f.die()
            for name in f.tasks:  # the sites are back
                f.coordinator.receive(f.now, name, Register(20, 4, holds=f.tasks[name].task, run="run"))
            f.store.commit(f.coordinator.take())
        if f.coordinator.stopped is not None:
            break
    reason = "its privacy budget is spent (ε = 2 at δ = 0.001)"
    left = [row for row in f.rows if row.name == "left"]
    assert {(row.data or {})["reason"] for row in left} == {reason}
    refused = [name for name, message in said if message == Rejected(reason)]
    assert len(refused) == len(left) == 3
    assert f.coordinator.stopped == "the privacy budget is spent: 1 clients have any left, 2 are needed"
    figures = [row.data or {} for row in f.rows if row.name == "aggregate"]
    assert max(data["epsilon"] for data in figures) <= 2
    assert all({"mu", "epsilon_strict", "sigma", "clip", "spent"} <= set(data) for data in figures)
    f.store.close()


def test_a_spent_client_is_refused_when_it_comes_back(tmp_path: Path) -> None:
    f = Federation(tmp_path / "d", options_of(epsilon=2.0))
    i = 0
    while not (left := [row for row in f.rows if row.name == "left"]):
        assert i < 100
        effects = f.step(i)
        f.store.commit(effects)
        f.deliver(effects)
        i += 1
    name, reason = f"site-{left[0].client}", "its privacy budget is spent (ε = 2 at δ = 0.001)"
    for _ in range(2):
        f.coordinator.receive(f.now, name, Register(20, 4))
        effects = f.coordinator.take()
        assert (name, Rejected(reason)) in effects.messages
        assert not effects.rows
        assert not [m for n, m in effects.messages if n == name and isinstance(m, Registered)]
        f.die()
    f.store.close()


# ---- participation ----


def test_a_site_that_tells_its_exact_number_of_samples_is_refused() -> None:
    c = coordinator_of(replace(options_of(), samples_unit=50), Recorded())
    c.receive(0.0, "site-0", Register(137, 28))
    refused = "samples = 137 is not a multiple of samples_unit = 50 of this run: "
    effects = c.take()
    reply = Rejected(f"{refused}set samples_unit: 50 in the site's policy")
    assert effects.messages == [("site-0", reply)]
    assert not effects.rows
    assert not effects.sites
    c.receive(1.0, "site-0", Register(150, 30))
    assert [row.data for row in c.take().rows] == [{"samples": 150, "steps_per_epoch": 30}]


def test_a_site_with_which_there_are_too_many_for_delta_is_refused(tmp_path: Path) -> None:
    """Whenever one joins: those who have left count, a site that is known does not count twice."""
    noise = ob.Noise(multiplier=2, budget=ob.Budget(epsilon=50.0, delta=0.19))
    c = coordinator_of(replace(options_of(), noise=noise), Recorded())
    for i in range(SITES):
        c.receive(float(i), f"site-{i}", Register(20, 4))
    c.receive(4.0, "site-4", Register(20, 4))  # 5 * 0.19 is below 1
    c.receive(5.0, "site-0", Leave("tired"))
    c.receive(6.0, "site-4", Register(20, 4))
    assert c.take().closed == [("site-0", "the site has left")]
    for name in ("site-5", "site-6"):
        c.receive(7.0, name, Register(20, 4))
        effects = c.take()
        reason = "delta = 0.19 is not allowed with 6 clients: it must be below 1/6"
        assert effects.messages == [(name, Rejected(reason))]
        assert effects.closed == [(name, reason)]
        assert not effects.rows
        assert not effects.sites
    assert c.rejected == {"delta": 2}
    c.receive(8.0, "site-0", Register(20, 4))
    assert any(row.name == "joined" for row in c.take().rows)


@pytest.mark.parametrize("times", [float("nan"), float("inf"), 1e30, 0.0])
def test_participation_tells_nothing_of_an_update(times: float, tmp_path: Path) -> None:
    """One that is not finite, absurd or zero is in the same releases, and its metrics go nowhere."""

    def rows(factor: float) -> list[Any]:
        c, found = coordinator_of(options_of(), Recorded()), []
        for i in range(SITES):
            c.receive(float(i), f"site-{i}", Register(20, 4))
        for i in range(12):
            task = next(iter(sorted(c.server.tasks.values(), key=lambda own: own.id)))
            delta = update_of(task.id) * (factor if task.client == 0 else 1.0)
            message = UpdateSubmission(task.id, 1, delta, torch.zeros(0, dtype=torch.int64), {"loss": factor})
            c.receive(10.0 + i, f"site-{task.client}", message)
        found = c.take().rows
        assert c.tensors.model.values.isfinite().all()
        return [row for row in found if row.name != "skipped"]

    assert rows(times) == rows(1.0)
    assert "loss" not in str(rows(1.0))


def test_the_server_clips_whatever_the_site_did() -> None:
    """The step of a huge update is that of one of norm C, beside the noise."""
    c = coordinator_of(options_of(), Recorded())
    plan = c.tensors.release.plan  # type: ignore[union-attr]
    y = plan.grid.round((torch.ones(SIZE) * 1e6).numpy(), bytes(32))
    assert abs(float((y.astype(float) ** 2).sum()) ** 0.5 / plan.grid.bound - 1) < 1e-3
    assert discrete_gaussian(plan.sigma, 3, bytes(32)).any()


def test_what_is_spent_is_shown() -> None:
    """In the snapshot, and so on the page and in `offbeat status`, and for Prometheus."""
    c = coordinator_of(options_of(), Recorded())
    for i in range(SITES):
        c.receive(float(i), f"site-{i}", Register(20, 4))
    for i in range(6):
        task = min(c.server.tasks.values(), key=lambda own: own.id)
        message = UpdateSubmission(task.id, 1, update_of(task.id), torch.zeros(0, dtype=torch.int64))
        c.receive(10.0 + i, f"site-{task.client}", message)
    seen = snapshot(c, "label")
    assert seen.privacy is not None
    assert seen.privacy["epsilon"] > 0
    text = exposition(seen).decode()
    assert f"offbeat_privacy_epsilon {seen.privacy['epsilon']}" in text
    assert "offbeat_privacy_budget 50.0" in text
    assert "offbeat_privacy_clients_spent 0.0" in text
    assert privacy_text(seen.privacy).startswith("ε = ")
