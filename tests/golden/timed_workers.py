"""Clients with fixed seconds a task and exact gradients, in float64, on the real engine and global model."""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

import torch

import offbeat as ob
from offbeat.core.commands import Command, Discard, Drop, Train
from offbeat.core.engine import Engine
from offbeat.core.events import Arrived, Begin, Event, Joined, Left, Lost
from offbeat.core.global_model import GlobalModel
from offbeat.core.journal import Row
from offbeat.core.layout import Layout
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model


class TimedWorkers:
    """A run of one value; client i needs `seconds[i]` for an update, which is `delta(i, value of its base)`.

    Attributes:
        told: What happened, in order: (time, client, "step", staleness, value), (time, client, "dropped") and
            (time, client, "stopped"); the client of a step is that of its last update.
    """

    def __init__(
        self,
        algorithm: ob.Algorithm,
        seconds: Sequence[float],
        delta: Callable[[int, float], float],
        start: float,
    ) -> None:
        integers = torch.zeros(0, dtype=torch.int64)
        model = Model(Layout.flat(1), torch.tensor([start], dtype=torch.float64), integers)
        self.tensors = GlobalModel(algorithm, model)
        self.rows: list[Row] = []
        self.engine = Engine(algorithm.schedule, 0, self.rows.append, self.tensors)
        self.server = self.engine.server
        self.told: list[tuple[Any, ...]] = []
        self._seconds, self._delta, self._integers = seconds, delta, integers
        self._number = count()
        self._queue: list[tuple[float, int, int, int]] = []
        for client in range(len(seconds)):
            self.feed(0.0, Joined(client, 10, 1))
        self.feed(0.0, Begin())

    @property
    def value(self) -> float:
        """The current global model."""
        return float(self.tensors.model.values[0])

    def feed(self, now: float, event: Event, result: LocalResult | None = None) -> None:
        """Feed an event and carry its commands out."""
        if isinstance(event, Left | Lost):
            self._forget(event.client)
        commands = self.engine.apply(now, event, result)
        client = getattr(event, "client", None)
        task = self.server.current_task
        for command in commands:
            self._carry_out(now, command)
        if any(type(command).__name__ == "Aggregate" for command in commands):
            stopped = [t for t in self.told if t[:1] == (now,) and t[2:] == ("stopped",)]
            self.told = [t for t in self.told if t not in stopped]
            staleness = None if task is None or not isinstance(event, Arrived) else task.staleness
            self.told += [(now, client, "step", staleness, self.value), *stopped]

    def _carry_out(self, now: float, command: Command) -> None:
        match command:
            case Train():
                at = now + self._seconds[command.client]
                heappush(self._queue, (at, next(self._number), command.client, command.task))
            case Discard():
                self._forget(command.client)
                self.told.append((now, command.client, "stopped"))
            case Drop():
                self.told.append((now, command.client, "dropped"))

    def _forget(self, client: int) -> None:
        self._queue = [own for own in self._queue if own[2] != client]
        heapify(self._queue)

    def until(self, end: float) -> "TimedWorkers":
        """Go on until this time, inclusive up to rounding."""
        while self._queue and self._queue[0][0] <= end + 1e-9:
            at, _, client, task = heappop(self._queue)
            base = float(self.tensors.bases[task][1].values[0])
            change = torch.tensor([self._delta(client, base)], dtype=torch.float64)
            self.feed(at, Arrived(client, task, 1), LocalResult(change, self._integers))
        return self

    def steps(self) -> list[tuple[float, int, float]]:
        """The versions made: time, client and value."""
        return [(round(t[0], 9), t[1], t[4]) for t in self.told if t[2] == "step"]
