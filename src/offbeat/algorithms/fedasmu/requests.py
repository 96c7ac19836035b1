"""FedASMU: when a device asks for the fresh global model (Jia et al., 2025, Section 4.3.1).

A task of L epochs may ask once, after l* ∈ [1, L − 1] of them. The reward R is how much the loss fell by
the merge; a request that finds nothing newer has none and teaches nothing (Algorithm 2, lines 9-15). On a
client's first task a model that all clients share chooses l*: an LSTM with a linear layer goes over the
epochs and gives the probability of asking at each one, trained by REINFORCE. From then on the client's own
Q-table moves its l* by +1, 0 or −1. (The paper prints +1 for the action *stay*, too.)

Everything here follows from the rewards in the journal. So the tables are kept with the schedule's state
on the client's behalf, and neither a replay nor a resumed run needs a model to know when a client asks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from dataclasses import replace as shallow
from itertools import islice
from math import cos, isfinite, log, pi
from typing import Annotated, Any, Literal

import numpy as np
import torch
from msgspec import Struct, convert
from msgspec.structs import replace
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from offbeat.algorithms.fedasmu.merging import FreshMerge
from offbeat.algorithms.option_types import Count, NonNegative, Share
from offbeat.core.commands import Command, Send, Train
from offbeat.core.events import Arrived, ClientId, Event, Left, Lost, TaskId, WantsModel
from offbeat.core.features import Feature
from offbeat.core.objective import Objective
from offbeat.core.saved_state import to_plain
from offbeat.core.schedule import Schedule, ScheduleWrapper, View
from offbeat.core.streams import Purpose
from offbeat.core.types import NUMBER
from offbeat.core.validation import checked_dataclass

AskEvery = Annotated[
    Count | None, Field(description="local steps between possible requests; None means an epoch")
]
ACTIONS = (0, 1, -1)
_WAVES = (1, 2, 3, 4)  # k in cos(π k l / L), the position of epoch l in its task
# Sums and products of rewards within this limit stay finite, also in float32.
_MOST = 1e30


@checked_dataclass
class FixedTiming:
    """Always the same l*: the "first" epoch (H1), "half" of them, ⌊L/2⌋ (H2), or the "last" but one (H3)."""

    at: Annotated[
        Literal["first", "half", "last"], Field(description="the epoch after which a device asks")
    ] = "half"
    kind: Literal["fixed"] = "fixed"

    def initial(self) -> None:
        """Nothing to learn."""

    def save(self, state: None) -> None:
        """Nothing is kept."""

    def load(self, saved: None) -> None:
        """Nothing is kept."""

    def choose(self, client: ClientId, epochs: int, state: None, generator: np.random.Generator) -> int:
        """l* of a task of L = `epochs` epochs."""
        return {"first": 1, "half": max(1, epochs // 2), "last": epochs - 1}[self.at]

    def learn(self, client: ClientId, reward: float, state: None) -> None:
        """Nothing to learn."""


@dataclass
class Experience:
    """The selector's state: the shared model θ, REINFORCE's baseline b, and each client's table H.

    `last` has a client's l* before its present one (0: it was its first task), its action and its l*.
    `first` has the number of epochs L of a client's first task until its reward is known.
    """

    theta: dict[str, Tensor]
    baseline: float = 0.0
    table: dict[ClientId, dict[tuple[int, int], float]] = field(default_factory=dict)
    last: dict[ClientId, tuple[int, int, int]] = field(default_factory=dict)
    first: dict[ClientId, int] = field(default_factory=dict)


class _Learned(Struct):
    """An `Experience` without its model."""

    baseline: float
    table: dict[ClientId, dict[tuple[int, int], float]]
    last: dict[ClientId, tuple[int, int, int]]
    first: dict[ClientId, int]


@checked_dataclass
class LearnedTiming:
    """l* by REINFORCE on a client's first task, by its own Q-learning afterwards.

    With probability ε, `epsilon`, l* (or the action) is any one. Else a first l* is drawn by the model:
    REINFORCE needs that, the most probable one alone would not teach it. The action is the best one, any of
    them at equal values: a fixed order would carry l* to one end as long as what is tried first costs.
    The baseline is b := (1 − ρ) b + ρ R; κ is the paper's second φ.
    """

    rate: Annotated[NonNegative, Field(description="learning rate η_RL of the shared model")] = 1e-3
    memory: Annotated[Share, Field(description="weight ρ of the newest reward in the baseline")] = 0.1
    q_rate: Annotated[Share, Field(description="learning rate κ of the Q-table")] = 0.5
    discount: Annotated[Share, Field(description="discount ψ of the Q-table")] = 0.5
    epsilon: Annotated[Share, Field(description="probability ε of a random choice")] = 0.2
    hidden: Annotated[int, Field(ge=1, le=1024, description="width of the LSTM"), NUMBER] = 8
    kind: Literal["learned"] = "learned"

    def initial(self) -> Experience:
        """A model that finds all epochs equally good: its last layer is zero, the rest is fixed and small."""
        h = self.hidden
        width = len(_WAVES) + h + 1
        # The values of a sine are spread like random ones, but always the same.
        grid = torch.arange(4.0 * h * width).sin_().reshape(4 * h, width).mul_(h**-0.5)
        shapes = {"input": grid[:, : len(_WAVES)], "recurrent": grid[:, -h - 1 : -1], "bias": grid[:, -1]}
        theta = {name: tensor.clone().requires_grad_() for name, tensor in shapes.items()}
        return Experience({**theta, "out": torch.zeros(h + 1, requires_grad=True)})

    def save(self, state: Experience) -> Any:
        """The state as plain data: of each tensor of the model its shape and its values, as bytes."""
        theta = {name: tensor.detach().numpy().astype("<f4") for name, tensor in state.theta.items()}
        saved = {name: [list(array.shape), array.tobytes()] for name, array in theta.items()}
        return {**to_plain(shallow(state, theta={})), "theta": saved}

    def load(self, saved: Any) -> Experience:
        """The state that was saved. Raises `ValueError` for a model of another shape."""
        tensors = convert(saved["theta"], dict[str, tuple[tuple[int, ...], bytes]])
        arrays = {
            name: np.frombuffer(values, "<f4").astype(np.float32).reshape(shape)
            for name, (shape, values) in tensors.items()
        }
        shapes = {name: tuple(tensor.shape) for name, tensor in self.initial().theta.items()}
        if {name: array.shape for name, array in arrays.items()} != shapes:
            raise ValueError("the saved selector's model has another shape")
        theta = {name: torch.from_numpy(array).requires_grad_() for name, array in arrays.items()}
        learned = convert({name: own for name, own in saved.items() if name != "theta"}, _Learned)
        return Experience(theta, learned.baseline, learned.table, learned.last, learned.first)

    def choose(self, client: ClientId, epochs: int, state: Experience, generator: np.random.Generator) -> int:
        """l* of a task of L = `epochs` epochs."""
        explore = generator.random() < self.epsilon
        if client not in state.last:
            chosen = generator.integers(epochs - 1) if explore else draw(state.theta, epochs, generator)
            ask = 1 + int(chosen)
            state.first[client] = epochs
            state.last[client] = 0, 0, ask
            return ask
        # If the client's first task was lost, its choice is never learned from.
        state.first.pop(client, None)
        before = min(state.last[client][2], epochs - 1)
        values = state.table.setdefault(client, {})
        found = [values.get((before, a), 0.0) for a in ACTIONS]
        good = ACTIONS if explore else [a for a, v in zip(ACTIONS, found, strict=True) if v == max(found)]
        action = int(generator.choice(good))
        ask = min(max(before + action, 1), epochs - 1)
        state.last[client] = before, action, ask
        return ask

    def learn(self, client: ClientId, reward: float, state: Experience) -> None:
        """Learn from the reward of the client's last l*. A client reports it, so at most 1e30 counts."""
        reward = min(max(reward, -_MOST), _MOST)
        before, action, ask = state.last[client]
        if before == 0:
            self._reinforce(state.first.pop(client), ask, reward, state)
            return
        values = state.table[client]
        best = max(values.get((ask, a), 0.0) for a in ACTIONS)
        old = values.get((before, action), 0.0)
        values[before, action] = old + self.q_rate * (reward + self.discount * best - old)

    def _reinforce(self, epochs: int, ask: int, reward: float, state: Experience) -> None:
        """θ += η_RL Σ_l ∇ log P(s_l | s_<l) (R − b)."""
        state.baseline = (1 - self.memory) * state.baseline + self.memory * reward
        if epochs < 3:
            # With fewer than 3 epochs there was only one choice.
            return
        parameters = list(state.theta.values())
        log_p = next(islice(log_probabilities(state.theta, epochs), ask - 1, None))
        gradients = torch.autograd.grad(log_p, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(gradient, alpha=self.rate * (reward - state.baseline))


def draw(theta: dict[str, Tensor], epochs: int, generator: np.random.Generator) -> int:
    """l* − 1, drawn by the model, which goes no further than l*."""
    drawn, upto = generator.random(), 0.0
    with torch.no_grad():
        for before, log_p in enumerate(log_probabilities(theta, epochs)):
            upto += float(log_p.double().exp())
            if upto >= drawn:
                return before
    return epochs - 2


def log_probabilities(theta: dict[str, Tensor], epochs: int) -> Iterator[Tensor]:
    """log P(l* = l) for l = 1 … L − 1: Σ log P(s_j = 0 | s_<j) for j < l, + log P(s_l = 1 | s_<l).

    Who has not asked before epoch L − 1 asks then. The linear layer's output is counted from the log odds
    1 : L − 1 − l at which all l are equally likely.
    """
    hidden = theta["recurrent"].shape[1]
    weights, bias = theta["out"][:-1], theta["out"][-1]
    h, c = torch.zeros(1, hidden), torch.zeros(1, hidden)
    silent = torch.zeros(())
    for epoch in range(1, epochs - 1):
        x = torch.tensor([[cos(pi * wave * epoch / epochs) for wave in _WAVES]])
        h, c = torch.lstm_cell(x, (h, c), theta["input"], theta["recurrent"], theta["bias"])
        odds = h[0] @ weights + bias - log(epochs - 1 - epoch)
        yield silent + logsigmoid(odds)
        silent = silent + logsigmoid(-odds)
    yield silent


@checked_dataclass
class NoRequests:
    """No device asks: the ablation -FA."""

    kind: Literal["never"] = "never"


Selector = Annotated[
    FixedTiming | LearnedTiming | NoRequests,
    Field(
        discriminator="kind",
        description="when to ask for a fresh model: {kind: learned}, {kind: fixed, at: half}, {kind: never}",
    ),
]


@dataclass
class RequestState:
    """The wrapped schedule's state, the selector's, and after how many steps each running task asks.

    Of the tasks that have asked `after` keeps those that were sent a model.
    """

    inner: Any
    selector: Any
    after: dict[TaskId, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestFreshModel(ScheduleWrapper):
    """Any schedule, whose tasks ask once for a fresh model at the moment a selector chooses.

    A task of fewer than two epochs never asks. With `every`, that many local steps stand for an epoch.
    """

    inner: Schedule
    selector: FixedTiming | LearnedTiming
    every: AskEvery = None
    own_requires = frozenset({Feature.FRESH_MODELS, Feature.MERGE})
    own_provides = frozenset({Feature.ASKING})

    def initial(self) -> RequestState:
        """Both states."""
        return RequestState(self.inner.initial(), self.selector.initial())

    def save(self, state: RequestState) -> Any:
        """Both states as plain data."""
        inner, selector = self.inner.save(state.inner), self.selector.save(state.selector)
        return to_plain(shallow(state, inner=inner, selector=selector))

    def load(self, saved: Any) -> RequestState:
        """Both states that were saved."""
        state: RequestState = super().load(saved)
        return shallow(state, selector=self.selector.load(state.selector))

    def on(self, event: Event, state: RequestState, view: View) -> Iterator[Command]:
        """Add requests to the wrapped schedule's tasks, answer them, and learn from their rewards."""
        match event:
            case Arrived():
                self._learn(event, state)
            case Lost() | Left() if event.task is not None:
                state.after.pop(event.task, None)
        answered = False
        for command in self.inner.on(event, state.inner, view):
            answered |= isinstance(command, Send)
            if not isinstance(command, Train):
                yield command
                continue
            ask = self._ask(command, state, view)
            yield replace(command, ask_after=ask)
            if ask:
                state.after[view.tasks[command.client].id] = ask
        if isinstance(event, WantsModel) and not answered:
            if view.version > view.task(event.task).base:
                yield Send(event.client)
            else:
                state.after.pop(event.task, None)

    def _ask(self, command: Train, state: RequestState, view: View) -> int:
        """After how many steps the task asks; 0 for never."""
        epoch = self.every or view.fleet.steps_per_epoch(command.client)
        epochs = -(-command.steps // epoch)
        if epochs < 2:
            return 0
        rng = view.rng(Purpose.SELECTOR)
        return epoch * self.selector.choose(command.client, epochs, state.selector, rng)

    def _learn(self, event: Arrived, state: RequestState) -> None:
        after = state.after.pop(event.task, None)
        reward = event.metrics.get("reward")
        if after is None or reward is None or event.steps <= after or not isfinite(reward):
            # No model was merged, or the training has diverged.
            return
        self.selector.learn(event.client, reward, state.selector)


def with_requests(
    schedule: Schedule, merge: FreshMerge, selector: Selector, every: int | None
) -> tuple[Schedule, Objective]:
    """Schedule and objective with requests for fresh models; without them for the ablation -FA."""
    if isinstance(selector, NoRequests):
        return schedule, merge.inner
    return RequestFreshModel(schedule, selector, every), merge
