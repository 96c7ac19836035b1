"""A run that is served without a network: sites answer when they are told to, and nothing is trained."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

import offbeat as ob
from offbeat.algorithms.privacy.private import complete_privacy, with_privacy
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.net.messages import Register, Rejected, TaskAssignment, UpdateSubmission
from offbeat.net.secure.release_seeds import FreshSeeds
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.effects import Effects
from offbeat.net.server.handlers import RunInfo
from tests.net.support import coordinator_from, terms_of

SITES, SIZE, TASKS = 3, 40, 60
META: dict[str, Any] = {
    "label": "served", "algorithm": {"name": "fedbuff"}, "seed": 1, "clients": SITES, "run": "5f3a",
    "plan": {},
}  # fmt: skip
PRIVATE = {"privacy": {"options": {}, "parameters": SIZE, "clients": SITES}}
NOISE = ob.Privacy(clip=1.0, least=2, noise=ob.Noise(multiplier=2, budget=ob.Budget(epsilon=50, delta=1e-3)))
State = tuple[Any, ...]


def coordinator_of(
    privacy: ob.Privacy | None,
    first: float = 0.0,
    size: int = SIZE,
    tasks: int = TASKS,
    keep: bool = False,
) -> Coordinator:
    """A new coordinator, whose initial model has a value of its own."""
    algorithm = ob.fedbuff(size=2, steps=1)
    initial = Model(Layout.flat(size), torch.full((size,), first), torch.zeros(0, dtype=torch.int64))
    terms, info = (
        terms_of(clients=SITES, lease=1e9, until=ob.Until(tasks=tasks), keep_updates=keep),
        RunInfo("5f3a", {}),
    )
    if privacy is None:
        return coordinator_from(algorithm, initial, terms, info)
    complete = complete_privacy(privacy, algorithm, SITES)
    plan = ReleasePlan(complete, size, SITES)
    return coordinator_from(
        with_privacy(algorithm, complete), initial, terms, info, release_plan=plan, seeds=FreshSeeds()
    )


def state_of(coordinator: Coordinator) -> State:
    """What a coordinator knows, as plain data."""
    t, server = coordinator.tensors, coordinator.server
    held = {task: update.delta.tolist() for task, update in t.updates.items()}
    return (
        coordinator.driver.engine.rows, server.version, dict(server.counts), repr(server.tasks),
        t.model.values.tolist(), held, sorted(coordinator.registry.assigned),
    )  # fmt: skip


class ServedRun:
    """A server's directory, and sites that answer one at a time.

    Attributes:
        states: What the coordinator knew when so many rows were durable.
    """

    def __init__(
        self, directory: Path, privacy: ob.Privacy | None = None, size: int = SIZE, tasks: int = TASKS,
        keep: bool = False, **store: Any,
    ) -> None:  # fmt: skip
        self.directory, self.size = directory, size
        resumed = (directory / "run.db").exists()
        c = self.coordinator = coordinator_of(privacy, 9.0 if resumed else 0.0, size, tasks, keep)
        meta = None if resumed else META | ({} if privacy is None else PRIVATE)
        self.store = DurableStore(directory, c, meta, **store)
        names = {client: site.name for client, site in c.registry.by_client.items()}
        self.tasks = {names[client]: task.id for client, task in c.server.tasks.items()}
        self.states: dict[int, State] = {c.driver.engine.rows: state_of(c)}
        self.acknowledged: set[int] = set()
        self.step_number = int(c.now) + 1 if resumed and names else 0

    def step(self, commit: Callable[[Effects], None] | None = None) -> None:
        """The next message is taken in, made durable, and answered."""
        i, c = self.step_number, self.coordinator
        if c.stopped is not None:
            return
        self.step_number += 1
        sent = None
        if i < SITES:
            c.receive(float(i), f"site-{i}", Register(20, 4))
        elif self.tasks:
            name = min(self.tasks, key=lambda own: self.tasks[own])
            sent = self.tasks[name]
            update = torch.randn(self.size, generator=torch.Generator().manual_seed(sent))
            message = UpdateSubmission(sent, 1, update, torch.zeros(0, dtype=torch.int64))
            c.receive(float(i), name, message)
        effects = c.take()
        (commit or self.store.commit)(effects)
        if sent is not None:
            self.acknowledged.add(sent)
        if self.size == SIZE:
            self.states[c.driver.engine.rows] = state_of(c)
        for row in effects.rows:
            if row.name == "arrived":
                self.tasks = {n: t for n, t in self.tasks.items() if t != row.task}
        for name, answer in effects.messages:
            if isinstance(answer, TaskAssignment):
                self.tasks[name] = answer.task
            elif isinstance(answer, Rejected):
                self.tasks.pop(name, None)

    def steps(self, number: int) -> None:
        """Take in a number of messages."""
        for _ in range(number):
            self.step()

    def checkpoint(self) -> None:
        """Write a checkpoint."""
        self.store.checkpoint(self.coordinator)

    def finish(self) -> None:
        """Serve the run to its end."""
        while self.coordinator.stopped is None:
            self.step()
        self.store.finish(self.coordinator, {})


def recovered(directory: Path, privacy: ob.Privacy | None = None) -> State:
    """What a server knows that goes on in a directory."""
    coordinator = coordinator_of(privacy, first=9.0)
    store = DurableStore(directory, coordinator)
    store.close()
    return state_of(coordinator)


def seeds_in(directory: Path) -> dict[int, bytes]:
    """The seeds of noise in a directory, by version."""
    with closing(sqlite3.connect(directory / "secrets.db")) as database:
        return dict(database.execute("SELECT version, seed FROM seeds").fetchall())
