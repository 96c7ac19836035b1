"""Sites that say what is allowed, at its extremes: the server goes on, whatever algorithm it runs."""

from random import Random
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.core.layout import Entry, Layout
from offbeat.core.model import Model
from offbeat.net.messages import (
    ModelRequest,
    Register,
    TaskAssignment,
    TaskCancel,
    TaskFailed,
    UpdateSubmission,
)
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.validation import INTEGERS_PER_STEP, LARGEST_LR, LARGEST_METRIC, SMALLEST_LR
from tests.conformance.settings import OPTIONS
from tests.net.support import coordinator_from, terms_of

pytestmark = pytest.mark.usefixtures("one_thread")
MOST = LARGEST_METRIC
NUMBERS = (0.0, 5e-324, -5e-324, 1.0, -1.0, 1e15, -1e15, MOST, MOST, MOST, -MOST, -MOST, -MOST)
RATES = (0.0, SMALLEST_LR, 1.0, LARGEST_LR)
VALUES = (0.0, 1.0, -1.0, 1e-45, 1e10, -1e19, 1e20, 3.4e38, -3.4e38)
WHOLE = (0, 1, INTEGERS_PER_STEP, -INTEGERS_PER_STEP)
METRICS = ("loss", "beta", "reward", "gamma", "upsilon")
LAYOUT = Layout(
    (
        Entry("w", (3,), "float32", "parameter"),
        Entry("mean", (2,), "float32", "buffer"),
        Entry("count", (), "int64", "integer"),
    ),
    0,
)
SEEDS = {"fedasmu": 40, "fedssmu": 40}  # they alone look at what a site has measured


class Sites:
    """They train nothing and make up the rest."""

    def __init__(self, algorithm: ob.Algorithm, seed: int) -> None:
        count = max(3, algorithm.schedule.concurrency or 0)
        terms = terms_of(clients=count, lease=1e9, max_consecutive_failures=None, guard=None)
        model = Model.empty(LAYOUT)
        model.values.zero_()
        model.integers.zero_()
        self.rng, self.now = Random(seed), 0.0
        self.ranges = algorithm.objective.metric_ranges
        self.tasks: dict[str, TaskAssignment] = {}
        self.server = coordinator_from(algorithm, model, terms, RunInfo("run", {}, classes=2), seed=seed)
        for k in range(count):
            samples = self.rng.choice((1, 10, 2**40))
            epoch = min(samples, self.rng.choice((1, 2)))
            self.server.receive(0.0, f"site-{k}", Register(samples, epoch, (0, 0)))
            self.listen()

    def listen(self) -> None:
        for name, message in self.server.take().messages:
            if isinstance(message, TaskAssignment):
                self.tasks[name] = message
            elif isinstance(message, TaskCancel):
                self.tasks.pop(name, None)

    def something(self) -> None:
        """Time passes, and one of them asks, fails, or sends an update."""
        self.now += self.rng.choice((0.0, 1e-9, 1.0, 20.0))
        self.server.tick(self.now)
        self.listen()
        if not self.tasks:
            return
        name = self.rng.choice(sorted(self.tasks))
        task = self.tasks[name]
        if task.ask_after and self.rng.random() < 0.5:
            self.server.receive(self.now, name, ModelRequest(task.task, task.ask_after))
        elif self.rng.random() < 0.05:
            self.server.receive(self.now, name, TaskFailed(task.task, "made up"))
        else:
            self.server.receive(self.now, name, self.update(self.tasks.pop(name)))
        self.listen()

    def update(self, task: TaskAssignment) -> UpdateSubmission:
        steps = self.rng.choice((1, task.steps))
        measured = {
            name: self.rng.choice(self.ranges.get(name, NUMBERS))
            for name in METRICS
            if self.rng.random() < 0.8
        }
        integers = task.model.integers + steps * self.rng.choice(WHOLE)
        shared = self.vector(task.model.layout.shared)
        return UpdateSubmission(
            task.task, steps, self.vector(LAYOUT.values), integers, measured,
            self.rng.choice(RATES), shared if len(shared) and self.rng.random() < 0.8 else None,
        )  # fmt: skip

    def vector(self, size: int) -> torch.Tensor:
        return torch.tensor([self.rng.choice(VALUES) for _ in range(size)], dtype=torch.float32)


@pytest.mark.parametrize("name", [name for name in ob.ALGORITHMS if name != "wireless"])  # no radio
def test_no_number_of_a_site_stops_the_server(name: str) -> None:
    options: dict[str, Any] = OPTIONS.get(name, {})
    for seed in range(SEEDS.get(name, 5)):
        sites = Sites(ob.ALGORITHMS[name](**options), seed)
        for _ in range(60):
            sites.something()
        assert sites.server.server.counts["arrived"] > 5
        assert not sites.server.rejected
