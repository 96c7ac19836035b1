"""A server and its global model, driven by hand: the test says who arrives when, and with what."""

from collections.abc import Sequence

import torch
from msgspec.structs import replace

from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Command
from offbeat.core.engine import Engine
from offbeat.core.events import Arrived, Begin, Event, Joined, Timer
from offbeat.core.global_model import GlobalModel
from offbeat.core.journal import Row
from offbeat.core.layout import Layout
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model


class HandDriven:
    """Clients 0, 1, … with these numbers of samples join at 0 and the run begins."""

    def __init__(
        self,
        algorithm: Algorithm,
        samples: Sequence[int],
        start: Sequence[float],
        layout: Layout | None = None,
    ) -> None:
        layout = layout or Layout.flat(len(start))
        model = Model(layout, torch.tensor(start), torch.zeros(layout.integers, dtype=torch.int64))
        self.tensors = GlobalModel(algorithm, model)
        self.rows: list[Row] = []
        self.engine = Engine(algorithm.schedule, 0, self.rows.append, self.tensors)
        self.server = self.engine.server
        for client, n in enumerate(samples):
            self.feed(0.0, Joined(client, n, 1))
        self.feed(0.0, Begin())

    @property
    def w(self) -> list[float]:
        """The current global model."""
        return self.tensors.model.values.tolist()

    def feed(self, t: float, event: Event) -> list[Command]:
        """Any event but an arrival."""
        return self.engine.apply(t, event)

    def timer(self, t: float, name: str) -> list[Command]:
        """A timer fires, and must have been set for this time."""
        assert self.server.timers[name] == t
        return self.feed(t, Timer(name))

    def delta(
        self,
        t: float,
        client: int,
        *delta: float,
        integers: Sequence[int] = (),
        shared: Sequence[float] | None = None,
    ) -> list[Command]:
        """The client's task is done: Δ over the flat values, and the shared vector's change."""
        task = self.server.tasks[client]
        result = LocalResult(torch.tensor(delta), torch.tensor(integers, dtype=torch.int64))
        if shared is not None:
            result = replace(result, shared=torch.tensor(shared))
        return self.engine.apply(t, Arrived(client, task.id, task.steps), result)

    def model(self, t: float, client: int, *model: float, integers: Sequence[int] = ()) -> list[Command]:
        """The client's task is done: w_i, its trained model."""
        base = self.tensors.bases[self.server.tasks[client].id][1]
        delta = (torch.tensor(model) - base.values).tolist()
        return self.delta(t, client, *delta, integers=integers)
