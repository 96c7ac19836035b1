"""A whole deployed run in one thread: a server, its sites, their network and disks, and faults from one seed.

The code is the package's own: service, coordinator, registry, durable store, listener, connections, sites
and their stores. Simulated are time, threads, the calls of gRPC, the disks, and training, whose updates are
numbers that follow from the task and the model.
"""

import asyncio
import hashlib
import logging
import math
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np
import torch
from msgspec.structs import replace

import offbeat as ob
from offbeat.callbacks.callback_list import CallbackList
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import OffbeatError
from offbeat.core.events import Arrived
from offbeat.core.journal import Row
from offbeat.core.layout import Layout
from offbeat.core.learner import LocalResult, LocalTask, TaskControl, TaskInputs
from offbeat.core.limits import Every
from offbeat.core.model import Model
from offbeat.net.client.site_client import SiteClient
from offbeat.net.client.store import SiteStore
from offbeat.net.client.task import TrainingContext
from offbeat.net.messages import (
    FromServer,
    FromSite,
    ModelResponse,
    TaskAssignment,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.finished import FinishedRun, FinishedService
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.service import OpenRun, Service
from offbeat.runs.files import read_tensors
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.schema import DATABASE, MODEL
from offbeat.sim.replay import replay
from tests.net.support import coordinator_from, terms_of
from tests.system.disk import Disk, watching
from tests.system.loop import Loop, LoopClock, Process, SimpleQueue, Threads, sleep, virtual_time
from tests.system.network import Network

SIZE = 8
"""Parameters of the model."""
LEASE, LINGER = 6.0, 4.0
PATIENCE = 1500.0
"""Seconds without faults after which a site that got no work, or a run that has not ended, is a failure."""
RESTARTS = 5
"""Failed starts in a row, without faults, after which a machine has failed for good."""
SAMPLES, BATCH = 32, 8
_MEMORY = Path("/dev/shm")


@cache
def algorithms() -> dict[str, Algorithm]:
    """The algorithms of the simulated runs, by name."""
    return {
        "fedbuff": ob.fedbuff(size=2, steps=4),
        "fedcompass": ob.fedcompass(q_min=2, q_max=6),
        "fedasmu": ob.fedasmu(epochs=2, size=2, period=4.0),
        "port": ob.port(size=2, tau_max=2, epochs=2, urgent=True),
    }


class FailedError(AssertionError):
    """An invariant does not hold; `lines` says what has happened before, if it was kept."""

    lines: Sequence[str] = ()


class Machine:
    """The server's machine or a site's: its disk, the process on it, when that is started again."""

    def __init__(self, name: str, disk: Disk) -> None:
        self.name, self.disk = name, disk
        self.process: Process | None = None
        self.power_failed = False
        self.down = 0.0  # seconds until it is started again
        self.starts = self.failed_starts = 0
        self.outcome: str | None = None


class Numbers:
    """A learner whose updates are numbers that follow from the task and the models, and that takes time.

    Args:
        step_seconds: Seconds of a local step.
    """

    batch_size, drop_last = BATCH, False
    clients = 1

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds

    def samples(self, client: int) -> int:
        return SAMPLES

    def held_out(self, client: int) -> int:
        return 0

    def steps_per_epoch(self, client: int) -> int:
        return SAMPLES // BATCH

    def train(
        self, model: Model, task: LocalTask, objective: Any, inputs: TaskInputs, control: TaskControl
    ) -> LocalResult:
        steps, fresh, metrics = 0, None, {"loss": 1.0}
        values = model.values
        while steps < task.steps and not control.stops(steps):
            sleep(self._step_seconds)
            steps += 1
            if (fresh := control.fresh(steps)) is not None:
                values = 0.5 * values + 0.5 * fresh[1].values
                metrics = {"loss": 1.0, "beta": 0.5, "reward": float(values.sum())}
        drawn = np.random.default_rng([task.task, task.client, steps]).normal(size=SIZE)
        delta = torch.from_numpy(drawn.astype(np.float32)) * 0.1 - 0.05 * values
        done = inputs.state.get("tasks", torch.zeros(0, dtype=torch.int64))
        state = {"tasks": torch.cat([done, torch.tensor([task.task])])}
        return LocalResult(delta, torch.zeros(0, dtype=torch.int64), metrics, 0.1, None, state)


def loss(model: Model) -> dict[str, float]:
    """The loss of a version: of one in ten that of a model that has collapsed."""
    drawn = crc32(model.values.numpy().tobytes())
    return {"loss": math.nan if drawn % 10 == 0 else 1.0 + drawn % 7}


class Federation:
    """One simulated run.

    Args:
        seed: Everything is drawn from it.
        loop: The loop it runs in.
        root: An empty directory for the disks.
        keep: Whether to keep the lines.

    Attributes:
        lines: What has happened, a line each, if `keep` is set.
        digest: Digest of all lines.
        counts: How often each fault has happened.
    """

    def __init__(self, seed: int, loop: Loop, root: Path, *, keep: bool = False) -> None:
        self.seed, self.loop = seed, loop
        self._root = root
        self.rng = Random(f"world {seed}")
        self.lines: list[str] = []
        self.digest = hashlib.sha256()
        self.counts: dict[str, int] = {}
        self._keep = keep
        self.name = list(algorithms())[seed % 4]
        self.network = Network(Random(f"network {seed}"))
        self.network.sent, self.network.received = self._sent, self._received
        self.server = self._machine("server", root)
        self.sites = [self._machine(f"site-{i}", root) for i in range(self.rng.randint(2, 3))]
        self._speeds = [self.rng.uniform(0.1, 0.6) for _ in self.sites]
        self._logs_updates, self._evaluates = self.rng.random() < 0.5, self.rng.random() < 0.5
        self._checkpoint_seconds = self.rng.uniform(1.0, 8.0)
        self.machines = [self.server, *self.sites]
        self.calm_since: float | None = None
        self._service: Service | None = None
        self._copies: dict[tuple[int, int], LocalResult] = {}
        self._acknowledged: dict[int, str] = {}
        self._versions: dict[int, bytes] = {}
        self._served: dict[str, float] = {}  # the last acknowledged update of each site
        self._ended: set[str] = set()
        self._problem: str | None = None
        self._cause: BaseException | None = None

    def _machine(self, name: str, root: Path) -> Machine:
        place = root / name
        place.mkdir()
        disk = Disk(place, Random(f"{name} {self.seed}"), lambda line: self.trace(f"{name}: {line}"))
        machine = Machine(name, disk)
        disk.power_failed = lambda: self.crash(machine, power_failed=True)
        return machine

    def trace(self, line: str) -> None:
        """Note what happens."""
        line = f"{self.loop.now:.6f} {line}".replace(str(self._root), "")
        self.digest.update(line.encode())
        if self._keep:
            self.lines.append(line)

    def fail(self, problem: str) -> None:
        """An invariant does not hold; the first is the one that is reported."""
        if self._problem is None:
            self._problem = f"{problem} at {self.loop.now:.3f} s"
            self.trace(self._problem)

    # ---- the run ----

    async def run(self) -> None:
        """Run to the end. Raises `FailedError`."""
        machines = [asyncio.create_task(self._keep_running(machine)) for machine in self.machines]
        try:
            await self._faults(self.rng.uniform(3.0, 9.0))
            await self._calm()
        finally:
            for task in machines:
                task.cancel()
            await asyncio.gather(*machines, return_exceptions=True)
            for machine in self.machines:
                if machine.process is not None:
                    machine.process.kill()
                    await machine.process.ended()
        self._check_end()

    async def _keep_running(self, machine: Machine) -> None:
        """Start a machine's process again whenever it has ended, until its part in the run is over."""
        while machine.outcome is None:
            process = machine.process = Process(machine.name)
            machine.starts += 1
            self.trace(f"{machine.name} starts")
            main = self._serve() if machine is self.server else self._take_part(machine)
            task = process.start(main)
            await asyncio.wait([task])
            self._note_end(machine, task)
            process.kill()
            self.network.process_died(process)
            await process.ended()
            machine.disk.restart(power_failed=machine.power_failed)
            if machine is self.server:
                self._check_directory()
            machine.power_failed = False
            await asyncio.sleep(machine.down)
            machine.down = 0.5

    def _note_end(self, machine: Machine, task: "asyncio.Task[str | None]") -> None:
        assert machine.process is not None
        if not machine.process.alive:
            return
        error = None if task.cancelled() else task.exception()
        self.trace(f"{machine.name} ends: {error or (None if task.cancelled() else task.result())}")
        if error is None:
            machine.failed_starts = 0
            if not task.cancelled() and task.result() is not None:
                self._finished(machine)
        elif not isinstance(error, OffbeatError):
            self.fail(f"{machine.name} died of {type(error).__name__}: {error}")
            self._cause = error
        elif self.calm_since is not None:
            machine.failed_starts += 1
            if machine.failed_starts >= RESTARTS:
                self.fail(f"{machine.name} does not start: {error}")

    def _finished(self, machine: Machine) -> None:
        """A site has heard of the end; the server is there until all have."""
        if machine is not self.server:
            machine.outcome = "finished"
            self._ended.add(machine.name)
        if len(self._ended) == len(self.sites):
            self.server.outcome = "finished"

    async def _serve(self) -> str | None:
        directory, clock = self.server.disk.root / "run", LoopClock()
        found = read_run(directory) if (directory / DATABASE).is_file() else None
        if found is not None and found.status == "finished":
            ended = FinishedService(FinishedRun("run", found.stop_reason or ""), clock, LINGER)
            listener = await self.network.listen(ended.on_channel)
            try:
                return await ended.run()
            finally:
                await listener.close()
        coordinator = self._coordinator()
        meta = {"label": "x", "algorithm": {"name": self.name}, "seed": 1, "clients": 2, "run": "run"}
        new = meta if found is None else None
        store = DurableStore(directory, coordinator, new, self._checkpoint_seconds)
        if found is not None:
            self._check_model(coordinator, found)
        run = OpenRun(coordinator, store, loss if self._evaluates else None, "x")
        service = self._service = Service(run, clock, LINGER, CallbackList(()))
        listener = await self.network.listen(service.on_channel)
        try:
            return await service.run()
        finally:
            self._service = None
            await listener.close()

    def _coordinator(self) -> Coordinator:
        every = Every(versions=1, keep_best="loss") if self._evaluates else Every()
        options = terms_of(clients=2, lease=LEASE, task_timeout=60.0, evaluate=every)
        info = RunInfo("run", {"a": 1}, None, BATCH)
        return coordinator_from(
            algorithms()[self.name], Model.empty(Layout.flat(SIZE)), options, info, seed=1
        )

    async def _take_part(self, machine: Machine) -> str:
        number = self.sites.index(machine)
        learner: Any = Numbers(self._speeds[number])
        objective = algorithms()[self.name].objective

        def prepare(_: Any, client: int) -> TrainingContext:
            return TrainingContext(client, learner, objective, None, 1)

        client = SiteClient(
            self.network.connect(machine.name), prepare, SAMPLES, steps_per_epoch=SAMPLES // BATCH,
            store=SiteStore(machine.disk.root / "state"), clock=LoopClock(), give_up_after=None,
            rng=Random(f"backoff {machine.name} {self.seed} {machine.starts}"),
        )  # fmt: skip
        return await client.run()

    # ---- faults ----

    async def _faults(self, seconds: float) -> None:
        """Let faults happen for a while."""
        rng, end = self.rng, self.loop.now + seconds
        self.network.delay, self.network.duplicate = rng.choice((0.02, 0.3, 1.5)), rng.choice((0.0, 0.1, 0.4))
        for machine in self.machines:
            machine.disk.slow = rng.choice((0.0, 0.0, 0.05))
        kinds = [
            self._kill, self._cut_power, self._cut_power_later, self._cut_power_later, self._break_call,
            self._silence_call, self._partition, self._disk_errors, self._fill_disk, self._detach,
        ]  # fmt: skip
        chosen = rng.sample(kinds, rng.randint(2, len(kinds)))
        while self.loop.now < end and self._problem is None:
            await asyncio.sleep(rng.expovariate(1 / 1.1))
            fault = rng.choice(chosen)
            self.trace(fault.__name__)
            self.counts[fault.__name__] = self.counts.get(fault.__name__, 0) + 1
            fault()

    def _victim(self) -> Machine:
        """The server most of the time."""
        return self.server if self.rng.random() < 0.7 else self.rng.choice(self.sites)

    def crash(self, machine: Machine, *, power_failed: bool) -> None:
        """A machine's process dies now."""
        if machine.process is not None and machine.process.alive:
            machine.power_failed = power_failed
            machine.down = self.rng.choice((0.2, 2.0, 9.0)) * self.rng.random()
            self.trace(f"{machine.name} dies")
            machine.process.kill()

    def _kill(self) -> None:
        self.crash(self._victim(), power_failed=False)

    def _cut_power(self) -> None:
        self.crash(self._victim(), power_failed=True)

    def _cut_power_later(self) -> None:
        """In the middle of what is written next."""
        self._victim().disk.fails_after = self.rng.randint(0, 60)

    def _break_call(self) -> None:
        if self.network.calls:
            self.rng.choice(self.network.calls).break_off()

    def _silence_call(self) -> None:
        if self.network.calls:
            self.rng.choice(self.network.calls).silence()

    def _partition(self) -> None:
        names = [site.name for site in self.sites]
        self.network.cut_off = set(self.rng.sample(names, self.rng.randint(1, len(names))))
        self.loop.call_later(self.rng.uniform(0.5, 12.0), self.network.cut_off.clear)

    def _disk_errors(self) -> None:
        disk = self._victim().disk
        disk.error = self.rng.choice((0.02, 0.2))
        self.loop.call_later(self.rng.uniform(0.5, 5.0), setattr, disk, "error", 0.0)

    def _fill_disk(self) -> None:
        disk = self._victim().disk
        disk.full = True
        self.loop.call_later(self.rng.uniform(0.5, 5.0), setattr, disk, "full", False)

    def _detach(self) -> None:
        """The operator stops the server, and starts it again."""
        if self._service is not None and self.server.process is not None and self.server.process.alive:
            self.server.down = self.rng.random() * 3.0
            self._service.detach()

    async def _calm(self) -> None:
        """No more faults: every site gets work, and the run ends."""
        self.trace("calm")
        self.network.delay, self.network.duplicate = 0.02, 0.0
        self.network.cut_off.clear()
        for machine in self.machines:
            disk = machine.disk
            disk.error, disk.full, disk.fails_after, disk.slow = 0.0, False, None, 0.0
        since = self.calm_since = self.loop.now
        names = {site.name for site in self.sites}
        await self._until(
            lambda: all(self._served.get(name, -1.0) > since for name in names),
            lambda: f"no work for {sorted(n for n in names if self._served.get(n, -1.0) <= since)}",
        )
        finishing = self.loop.now
        while self._problem is None and len(self._ended) < len(names):
            if self._service is not None:
                self._service.finish("done")
            if self.loop.now > finishing + PATIENCE:
                self.fail(f"the run has not ended for {sorted(names - self._ended)}")
            await asyncio.sleep(1.0)

    async def _until(self, ready: Any, problem: Any) -> None:
        end = self.loop.now + PATIENCE
        while not ready() and self._problem is None:
            if self.loop.now > end:
                self.fail(problem())
            await asyncio.sleep(0.5)

    # ---- what the sites see ----

    def _sent(self, site: str, message: FromSite) -> None:
        self.trace(f"{site} > {type(message).__name__}")
        if isinstance(message, UpdateSubmission):
            delta = message.delta
            assert isinstance(delta, torch.Tensor)
            result = LocalResult(delta.clone(), message.integers, message.metrics, message.lr, message.shared)
            known = self._copies.setdefault((message.task, message.steps), result)
            if not torch.equal(known.delta, delta):
                self.fail(f"{site} has two updates of task {message.task}")

    def _received(self, site: str, message: FromServer) -> None:
        self.trace(f"{site} < {type(message).__name__} {getattr(message, 'task', '')}")
        if isinstance(message, TaskAssignment):
            self._see(message.base, message.model)
        elif isinstance(message, ModelResponse) and message.model is not None:
            self._see(message.version, message.model)
        elif isinstance(message, UpdateAck) and message.accepted:
            self._acknowledged[message.task] = site
            self._served[site] = self.loop.now

    def _see(self, version: int, model: Model) -> None:
        content = model.values.numpy().tobytes()
        if self._versions.setdefault(version, content) != content:
            self.fail(f"version {version} has two contents")

    # ---- invariants ----

    def _check_directory(self) -> None:
        """What is on the server's disk, after its process has died, has every acknowledged update once."""
        directory = self.server.disk.root / "run"
        arrived: list[int] = []
        if (directory / DATABASE).is_file():
            query = "SELECT task FROM journal WHERE name = 'arrived'"
            try:
                with closing(sqlite3.connect(directory / DATABASE)) as database:
                    arrived = [task for (task,) in database.execute(query)]
            except sqlite3.Error as error:
                self.fail(f"the directory cannot be read: {error}")
                return
        if len(arrived) != len(set(arrived)):
            self.fail("a task has arrived twice")
        if lost := sorted(set(self._acknowledged) - set(arrived)):
            self.fail(f"acknowledged updates are lost: {lost}")

    def _check_updates(self, rows: Sequence[Row]) -> None:
        """No update is used that has not arrived, or that is used already."""
        waiting: set[int] = set()
        for row in rows:
            data = row.data or {}
            used = (
                data.get("tasks", []) if row.name == "aggregate" else [row.task] if row.name == "drop" else []
            )
            if not waiting.issuperset(used) or len(used) != len(set(used)):
                self.fail(f"row {row.seq} uses updates that are not there: {used}")
            waiting.difference_update(used)
            if row.name == "arrived" and row.task is not None:
                waiting.add(row.task)

    def _check_states(self, record: RunRecord, rows: Sequence[Row]) -> None:
        """A site's own state is that after updates of its own that were accepted, each once."""
        names = record.site_names()
        arrived = {(names[row.client or 0], row.task) for row in rows if row.name == "arrived"}
        for site in self.sites:
            path = site.disk.root / "state" / "client.safetensors"
            state = read_tensors(path) if path.is_file() else {}
            tasks = state.get("state.tasks", torch.zeros(0)).tolist()
            if len(tasks) != len(set(tasks)) or not arrived.issuperset((site.name, task) for task in tasks):
                self.fail(f"{site.name} has the state after tasks {tasks}")

    def _check_model(self, coordinator: Coordinator, record: RunRecord) -> None:
        """The model is the one that the sites' copies of the updates give."""
        mine, theirs = coordinator.tensors, self._made_again(record, list(record.rows())).tensors
        if mine.version != theirs.version or not torch.equal(mine.model.values, theirs.model.values):
            self.fail(f"version {mine.version} is not what the sites' updates give")

    def _made_again(self, record: RunRecord, rows: Sequence[Row]) -> Coordinator:
        """The run of a journal, with the sites' copies of the updates."""
        again = self._coordinator()
        for name, client in record.select("SELECT name, client FROM sites ORDER BY client"):
            again.registry.add(name, client)
        versions, apply = {0: again.tensors.model}, again.driver.engine.apply

        def remember(*event: Any) -> Any:
            commands = apply(*event)
            versions[again.tensors.version] = again.tensors.model
            return commands

        with patch.object(again.driver.engine, "apply", remember):
            again.replay(rows, self._copy, versions.__getitem__)
        return again

    def _copy(self, event: Arrived) -> LocalResult:
        known = self._copies.get((event.task, event.steps))
        if known is None:
            self.fail(f"no site has sent the update of task {event.task}")
            raise FailedError(self._problem)
        # The next version may be made in its memory, and it may be needed again.
        return replace(known, delta=known.delta.clone(), metrics=event.metrics)

    def _check_end(self) -> None:
        """Everything holds at the end. Raises `FailedError` with the first problem."""
        if self.loop.failures:
            self.fail(f"an error is left in the loop: {self.loop.failures[0]!r}")
        if self._problem is None:
            self._check_directory()
            try:
                self._check_record(read_run(self.server.disk.root / "run"))
            except (FailedError, OffbeatError) as error:
                self.fail(str(error))
        if self._problem is not None:
            raise FailedError(f"seed {self.seed} ({self.name}): {self._problem}") from self._cause

    def _check_record(self, record: RunRecord) -> None:
        rows = list(record.rows())
        self._check_updates(rows)
        self._check_states(record, rows)
        if (difference := replay(record, algorithms()[self.name]).difference) is not None:
            self.fail(difference)
        final = self._made_again(record, rows).tensors.model
        if not torch.equal(final.values, read_tensors(record.path / MODEL)["w"]):
            self.fail("the final model is not what the sites' updates give")
        self.counts["rollback"] = sum(row.name == "rolled_back" for row in rows)
        self.trace(f"{len(rows)} rows, {len(self._acknowledged)} updates")


@contextmanager
def simulated(federation: Federation) -> Iterator[None]:
    """Put simulated threads, queues and time in place of the real ones."""
    now = SimpleNamespace(monotonic=lambda: federation.loop.now)
    limit = 0 if federation._logs_updates else 2**18
    with ExitStack() as stack:
        for module in ("net.server.service", "net.server.evaluation_thread", "net.client.worker"):
            stack.enter_context(patch(f"offbeat.{module}.ThreadPoolExecutor", Threads))
        stack.enter_context(patch("offbeat.net.client.task.SimpleQueue", SimpleQueue))
        stack.enter_context(patch("offbeat.net.server.durable_store.time", now))
        stack.enter_context(patch("offbeat.runs.store.time", now))
        stack.enter_context(patch("offbeat.net.client.store.time", SimpleNamespace(time=now.monotonic)))
        stack.enter_context(patch("offbeat.net.server.durable_store.SMALL", limit))
        stack.enter_context(federation.network.instead_of_grpc())
        stack.enter_context(watching([machine.disk for machine in federation.machines]))
        yield


def simulate(seed: int, *, keep: bool = False) -> Federation:
    """Run one seed. Raises `FailedError` where an invariant does not hold."""
    root = Path(tempfile.mkdtemp(dir=_MEMORY if _MEMORY.is_dir() else None)).resolve()
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with virtual_time(Random(f"threads {seed}")) as loop:
            federation = Federation(seed, loop, root, keep=keep)
            with simulated(federation):
                try:
                    loop.run_until_complete(federation.run())
                except FailedError as error:
                    error.lines = federation.lines
                    raise
        return federation
    finally:
        logging.disable(level)
        shutil.rmtree(root, ignore_errors=True)
