"""The server of a deployed run among sites that take exact times; the network takes none."""

from collections.abc import Sequence
from fractions import Fraction
from heapq import heappop, heappush
from itertools import count
from typing import Any

import torch

import offbeat as ob
from offbeat.core.journal import Row
from offbeat.core.learner import NoTraining
from offbeat.net.messages import Register, TaskAssignment, UpdateSubmission
from offbeat.net.server.handlers import RunInfo
from tests.algorithms.exact_compass import ExactWorld
from tests.net.support import coordinator_from, terms_of

INSTANT = Fraction(1, 10**12)
"""Relative difference below which a timer is set for the time of an update: the server reads first."""


class DeployedCompass:
    """One run: `rows` is its journal, `model` its last version."""

    def __init__(self, world: ExactWorld, algorithm: ob.Algorithm, arrivals: int) -> None:
        clients = len(world.seconds)
        options = terms_of(
            clients=clients,
            lease=1e15,
            task_timeout=None,
            guard=None,
            rollback=False,
            until=ob.Until(tasks=arrivals),
            evaluate=ob.Every(),
        )
        info = RunInfo("run", {}, classes=None, batch_size=1)
        self._server = coordinator_from(algorithm, NoTraining(1, 1).initial(0), options, info)
        self._world, self.rows = world, list[Row]()
        self._tasks = [0] * clients
        self._queue: list[tuple[Fraction, int, int, TaskAssignment]] = []
        self._order = count()
        for client, samples in enumerate(world.samples):
            self._server.receive(0.0, str(client), Register(samples, 1))
        self._take(Fraction(0))
        while self._server.stopped is None:
            self._next()
        self.model = self._server.tensors.model

    def _next(self) -> None:
        """Deliver the next update, or let a timer fire that is set for an earlier time."""
        due, ready = self._server.next_due(), self._queue[0][0]
        if due < ready * (1 - INSTANT):
            self._server.tick(due)
            self._take(_meant(due))
            return
        time, _, client, task = heappop(self._queue)
        update = torch.tensor([float(self._world.slopes[client] * task.steps)])
        integers = torch.zeros(0, dtype=torch.int64)
        self._server.receive(
            float(time), str(client), UpdateSubmission(task.task, task.steps, update, integers)
        )
        self._take(time)

    def _take(self, now: Fraction) -> None:
        effects = self._server.take()
        self.rows += effects.rows
        for name, message in effects.messages:
            if isinstance(message, TaskAssignment):
                self._train(now, int(name), message)

    def _train(self, now: Fraction, client: int, task: TaskAssignment) -> None:
        own: Sequence[Any] = self._world.seconds[client]
        seconds = 2 * self._world.latency[client] + task.steps * own[min(self._tasks[client], len(own) - 1)]
        self._tasks[client] += 1
        heappush(self._queue, (now + seconds, next(self._order), client, task))


def _meant(time: float) -> Fraction:
    """The fraction with few digits that a time is up to rounding, or its own value where there is none."""
    near, exact = Fraction(time).limit_denominator(10**6), Fraction(time)
    return near if abs(near - exact) < INSTANT * exact else exact
