"""Cached updates: the last update of each client stands for it when others have come.

One formula makes CA2FL, ACE and ACED, MIFA, FedVARP and FedStale. With h_i the last update of client i,
H = Σ h_i over the N clients and S the updates of one aggregation:

    w := w + η [ β H/N + κ Σ_S s(τ_i) (Δ_i − β h_i) ],   and then h_i := Δ_i for i ∈ S,

where κ is 1/|S| or 1/N. So clients whose updates have come correct what is remembered of them, and the others
count by what they sent last.

- CA2FL (Wang, Cao, Wu, Chen, Chen, ICLR 2024): β = 1, κ = 1/|S|, buffered. We know its server from its
  abstract and three third parties' codes, which agree. They take a client that comes twice in a buffer one
  update after the other; here both are measured against h_i before the buffer, so that a first buffer is
  FedBuff's.
- ACE and ACED (Chang et al., arXiv 2511.19066): β = 1, κ = 1/N, every update at once. Known from the abstract
  and third parties' notes. ACED forgets what is too old; that age is in versions since the update's base is
  our reading.
- MIFA (Gu, Huang, Zhang, Huang, NeurIPS 2021): β = 1, κ = 1/N, in rounds. The authors' code was read: it
  keeps Δ divided by its learning rate, fills the table from the initial model, and steps from the next round.
- FedVARP (Jhunjhunwala et al., UAI 2022) and FedStale (Rodio, Neglia, arXiv 2405.04171): κ = 1/|S|, in
  rounds, with β = 1 and any β. FedStale's authors' code has both; equal shares and participation are ours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from msgspec.structs import replace as changed
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.option_types import Concurrency, Count, Epochs, ServerRate, Share, Steps
from offbeat.algorithms.schedules import Buffered, Rounds
from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.algorithm import Algorithm
from offbeat.core.buffers import Buffers
from offbeat.core.client_cache import ClientCache
from offbeat.core.commands import Aggregate, Command
from offbeat.core.errors import AlgorithmError
from offbeat.core.events import ClientId, Event
from offbeat.core.features import Feature
from offbeat.core.model import Model, Tensors
from offbeat.core.programme import programme
from offbeat.core.schedule import Schedule, ScheduleWrapper, View
from offbeat.core.staleness import ConstantWeight, StalenessWeight
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain
from offbeat.vectors.arithmetic import weighted_sum
from offbeat.vectors.chunked import for_each_chunk
from offbeat.vectors.memory_pool import POOL

__all__ = ["Cached", "FullFirstRounds", "NoteDepartures", "ace", "ca2fl", "fedstale", "fedvarp", "mifa"]

First = Annotated[
    Literal["zero", "seen", "full"],
    Field(
        description="clients without an update so far: zero counts them with 0, seen does not count them, "
        "full waits until each has one"
    ),
]
Beta = Annotated[Share, Field(description="weight β of what is remembered")]
MaxAge = Annotated[
    Count | None, Field(description="versions after whose number an update is forgotten; None means never")
]
Departed = Annotated[
    Literal["keep", "drop"], Field(description="what is remembered of a client that has left")
]
ClientsPerRound = Annotated[Count | None, Field(description="clients of a round; None means all")]
PerRate = Annotated[
    bool, Field(description="keep updates divided by their learning rate, and use the present one")
]
GONE = "gone"
"""Entry of a note: the clients that have left."""
SUM, BEGUN = "sum", "begun"
"""Tensors in the memory: H in float64, and whether each client has had an update, with "full"."""


@checked_dataclass
class Cached(Aggregator):
    """w := w + scale · [ β H/N + κ Σ s(τ_i) (Δ_i − β h_i) ], then h_i := Δ_i.

    κ is 1 / number of these updates ("batch") or 1/N ("clients"). N counts the clients present, and those
    with an entry if they are more; with "seen" only those with an entry: before the updates for "batch", and
    with them for "clients". Updates of one client in one aggregation are all measured against its entry
    before; the last one stays. H is in float64 on the CPU, where the entries are too.
    """

    scale: ServerRate = 1.0
    beta: Beta = 1.0
    divide: Literal["batch", "clients"] = "batch"
    first: First = "zero"
    max_age: MaxAge = None
    per_rate: PerRate = False
    staleness: StalenessWeight = ConstantWeight()
    # Summed changes could take a running variance below 0.
    buffers: ClassVar[Buffers] = "mean"
    caches: ClassVar[bool] = True
    requires = frozenset({Feature.SINGLE_UPDATES})

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max_age is not None and self.first == "full":
            raise ValueError(
                f'max_age = {self.max_age} with first = "full" is not allowed: a forgotten update is missing '
                'again; choose first = "seen" or "zero"'
            )
        return self

    def step(self, updates: Sequence[Update], model: Model, memory: Tensors) -> Tensor:
        """Raises `AlgorithmError`: without a cache there is no step."""
        raise AlgorithmError("Cached keeps each client's last update: call cached_step, with a cache")

    def cached_step(
        self, updates: Sequence[Update], model: Model, memory: Tensors, cache: ClientCache
    ) -> Tensor:
        """The step, and the entries after it."""
        if SUM not in memory:
            # A memory that was emptied begins anew, and the entries with it.
            cache.clear()
        now = max(u.task.base + u.task.staleness for u in updates)
        self._forget(self._outdated(updates[0], now, cache), memory, cache)
        population = max(u.task.population for u in updates)
        updates = [u for u in updates if self.max_age is None or now - u.task.base <= self.max_age]
        full = self._is_full(population, memory, cache)
        step = self._step(updates, population, model, memory, cache)
        return step if full else step.zero_()

    def _outdated(self, update: Update, now: int, cache: ClientCache) -> list[ClientId]:
        """The clients whose entries do not count any more."""
        gone = [client for client in update.note.get(GONE, ()) if client in cache]
        if self.max_age is None:
            return gone
        old = [client for client, entry in cache.entries().items() if now - entry.base > self.max_age]
        return sorted({*gone, *old})

    def _forget(self, clients: Sequence[ClientId], memory: Tensors, cache: ClientCache) -> None:
        """Take entries out of H and of the cache."""
        if not clients:
            return
        total = memory[SUM].clone()
        for entry, vector in filter(None, map(cache.get, clients)):
            total.sub_(vector, alpha=1 / entry.rate)
        cache.drop(clients)
        memory[SUM] = total if len(cache) else torch.zeros_like(total)

    def _is_full(self, population: int, memory: Tensors, cache: ClientCache) -> bool:
        """Whether steps may be made: with "full" once each client has had an entry before the updates."""
        if self.first != "full" or BEGUN in memory:
            return True
        if len(cache) < population:
            return False
        memory[BEGUN] = torch.ones(())
        return True

    def _step(
        self, updates: Sequence[Update], population: int, model: Model, memory: Tensors, cache: ClientCache
    ) -> Tensor:
        newest = {u.task.client: n for n, u in enumerate(updates)}
        own = {client: found for client in newest if (found := cache.get(client)) is not None}
        before, after = len(cache), len(cache) + len(newest) - len(own)
        n = max(population, after)
        if self.first == "seen":
            n = before if self.divide == "batch" else after
        mean, kappa = 1 / max(1, n), 1 / max(1, len(updates) if self.divide == "batch" else n)
        rates = [(u.lr or 1.0) if self.per_rate else 1.0 for u in updates]
        # A mean of equal numbers may be rounded.
        rate = rates[0] if len({*rates}) == 1 else fmean(rates or [1.0])
        c = [kappa * self.staleness(u.task.staleness) for u in updates]
        by_client = dict.fromkeys(own, 0.0)
        for u, weight in zip(updates, c, strict=True):
            by_client[u.task.client] = by_client.get(u.task.client, 0.0) + weight
        remembered, vectors = self.scale * self.beta * rate, [u.delta.cpu() for u in updates]
        step, total = _calibrated(
            [(v, self.scale * weight * (rate / r)) for v, weight, r in zip(vectors, c, rates, strict=True)],
            [(v, e.rate, remembered / e.rate * (mean - by_client[i])) for i, (e, v) in own.items()],
            [(vectors[k], rates[k]) for k in newest.values()],
            # H without the batch's clients is 0 where there are no others, which rounding would hide.
            memory[SUM] if before > len(own) else None,
            remembered * mean,
            model.values,
        )
        for k in newest.values():
            cache.put(updates[k].task, vectors[k], rates[k])
        memory[SUM] = total
        return step.to(model.values.device)


def _calibrated(
    fresh: Sequence[tuple[Tensor, float]],
    known: Sequence[tuple[Tensor, float, float]],
    newest: Sequence[tuple[Tensor, float]],
    total: Tensor | None,
    weight: float,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """The step and the new H, in one pass over memory.

    Args:
        fresh: Each update, with its weight in the step.
        known: Each entry of the batch's clients, with its rate and its weight in the step.
        newest: Each new entry, with its rate.
        total: H. None means that it is 0 without `known`.
        weight: Weight in the step of H without `known`.
        like: A vector with the size of the step.
    """
    n, m, weights = len(fresh), len(known), [c for _, c in fresh]
    step, new_total = POOL.vector(like.numel(), like.dtype), POOL.vector(like.numel(), torch.float64)

    def add(step: Tensor, new_total: Tensor, *parts: Tensor) -> None:
        deltas, entries, new, rest = parts[:n], parts[n : n + m], parts[n + m :], parts[n + m + len(newest) :]
        weighted_sum(deltas, weights, step) if deltas else step.zero_()
        if rest:
            new_total.copy_(rest[0])
            for h, (_, rate, _) in zip(entries, known, strict=True):
                new_total.sub_(h, alpha=1 / rate)
            step.add_(new_total, alpha=weight)
        else:
            new_total.zero_()
        for h, (_, _, c) in zip(entries, known, strict=True):
            if c:
                step.add_(h, alpha=c)
        for h, (_, rate) in zip(new, newest, strict=False):
            new_total.add_(h, alpha=1 / rate)

    vectors = [*(v for v, _ in fresh), *(v for v, _, _ in known), *(v for v, _ in newest)]
    for_each_chunk(add, step, new_total, *vectors, *(() if total is None else (total,)))
    return step, new_total


@dataclass
class Known:
    """The state of the schedule inside, and the clients of which there have been updates."""

    inner: Any
    clients: set[ClientId] = field(default_factory=set)


@plain_dataclass(frozen=True)
class NoteDepartures(ScheduleWrapper):
    """Any schedule, whose aggregations note which of the clients with an update so far are away."""

    inner: Schedule

    def initial(self) -> Known:
        """No update has come."""
        return Known(self.inner.initial())

    def on(self, event: Event, state: Known, view: View) -> Iterator[Command]:
        """The schedule's commands; the note of an `Aggregate` has the clients that are away."""
        for command in self.inner.on(event, state.inner, view):
            if type(command) is Aggregate:
                # Noted again each time: the entry of a client stays where an aggregation is skipped.
                if gone := sorted(client for client in state.clients if client not in view.fleet):
                    command = changed(command, note={**command.note, GONE: gone})
                state.clients.update(view.task(task).client for task in command.tasks)
            yield command


@checked_dataclass
class FullFirstRounds(Rounds):
    """Rounds whose first one takes every client, so that each has an update from the second round on."""

    @property
    def largest_aggregation(self) -> int | None:
        """None: the first round has as many updates as clients."""
        return None

    def clients_of_round(self, view: View) -> int:
        """All clients before the first version, and `concurrency` of them afterwards."""
        return len(view.fleet) if view.version == 0 else super().clients_of_round(view)


def _noting(schedule: Schedule, left: str) -> Schedule:
    return NoteDepartures(schedule) if left == "drop" else schedule


@algorithm(
    paper="Wang, Cao, Wu, Chen, Chen, Tackling the Data Heterogeneity in Asynchronous Federated Learning "
    "with Cached Update Calibration, ICLR 2024, Algorithm 2",
    kind="semi-asynchronous",
)
def ca2fl(
    size: Annotated[Count, Field(description="buffer size K")] = 10,
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    concurrency: Concurrency = None,
    server_lr: ServerRate = 1.0,
    first: Literal["zero", "seen"] = "zero",
    left: Departed = "keep",
    staleness: StalenessWeight = ConstantWeight(),
) -> Algorithm:
    """FedBuff whose buffer corrects the mean of each client's last update.

    w := w + η_g [ H/N + (1/K) Σ (Δ_i − h_i) ], then h_i := Δ_i: the last update of each client stands for it
    while it trains. `size` is the paper's K, `concurrency` its M_c, `server_lr` its η. With `first` = "zero"
    clients without an update count in N. A first buffer is FedBuff's.
    """
    return Algorithm(
        schedule=_noting(Buffered(programme(steps, epochs), size, concurrency), left),
        aggregator=Cached(server_lr, first=first, staleness=staleness),
        objective=Plain(),
    )


@algorithm(
    paper="Chang et al., Mitigating Participation Imbalance Bias in Asynchronous Federated Learning, 2025",
    kind="asynchronous",
)
def ace(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    concurrency: Concurrency = None,
    server_lr: ServerRate = 1.0,
    first: First = "full",
    max_age: MaxAge = None,
    left: Departed = "keep",
) -> Algorithm:
    """Every arrival makes a step along the mean of all clients' last updates.

    w := w + (η_g/N) Σ h_i with h_i := Δ_i first, so that fast clients count no more than slow ones. A task
    is one local step unless `steps` or `epochs` say more. With `first` = "full" the model stands still until
    each client has sent an update. With `max_age` it is ACED, which forgets updates that started from an
    older version; it needs `first` = "seen" or "zero".
    """
    return Algorithm(
        schedule=_noting(Buffered(programme(steps or (None if epochs else 1), epochs), 1, concurrency), left),
        aggregator=Cached(server_lr, divide="clients", first=first, max_age=max_age),
        objective=Plain(),
    )


@algorithm(
    paper="Gu, Huang, Zhang, Huang, Fast Federated Learning in the Presence of Arbitrary Device "
    "Unavailability, NeurIPS 2021, Algorithm 1",
    kind="synchronous",
)
def mifa(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    clients_per_round: ClientsPerRound = None,
    server_lr: ServerRate = 1.0,
    first: Literal["full", "zero"] = "full",
    per_rate: PerRate = True,
    left: Departed = "keep",
) -> Algorithm:
    """Rounds that step along the mean of all clients' last updates.

    w := w + (η_g/N) Σ h_i with h_i := Δ_i for the clients of the round. With `first` = "full" the first round
    takes all clients and only fills the table; the first step is the second round's. "zero" is MIFA(0), whose
    clients without an update count with 0. `per_rate` keeps Δ_i divided by its learning rate.
    """
    rounds = FullFirstRounds if first == "full" else Rounds
    return Algorithm(
        schedule=_noting(rounds(programme(steps, epochs), clients_per_round), left),
        aggregator=Cached(server_lr, divide="clients", first=first, per_rate=per_rate),
        objective=Plain(),
    )


@algorithm(
    paper="Jhunjhunwala, Sharma, Nagarkatti, Joshi, FedVARP: Tackling the Variance Due to Partial Client "
    "Participation in Federated Learning, UAI 2022",
    kind="synchronous",
)
def fedvarp(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    clients_per_round: ClientsPerRound = None,
    server_lr: ServerRate = 1.0,
    left: Departed = "keep",
) -> Algorithm:
    """Rounds whose updates correct the mean of each client's last update.

    w := w + η_g [ H/N + (1/|S|) Σ_S (Δ_i − h_i) ], then h_i := Δ_i. Clients without an update count with 0.
    """
    return _in_rounds(steps, epochs, clients_per_round, server_lr, 1.0, left)


@algorithm(
    paper="Rodio, Neglia, FedStale: Leveraging Stale Client Updates in Federated Learning, 2024",
    kind="synchronous",
)
def fedstale(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    clients_per_round: ClientsPerRound = None,
    server_lr: ServerRate = 1.0,
    beta: Beta = 0.5,
    left: Departed = "keep",
) -> Algorithm:
    """Rounds between FedAvg and FedVARP: each client's last update counts with the weight β.

    w := w + η_g [ β H/N + (1/|S|) Σ_S (Δ_i − β h_i) ], then h_i := Δ_i. β = 1 is FedVARP, and β = 0 the equal
    mean of the round's updates.
    """
    return _in_rounds(steps, epochs, clients_per_round, server_lr, beta, left)


def _in_rounds(
    steps: int | None, epochs: int | None, clients: int | None, scale: float, beta: float, left: str
) -> Algorithm:
    return Algorithm(
        schedule=_noting(Rounds(programme(steps, epochs), clients), left),
        aggregator=Cached(scale, beta),
        objective=Plain(),
    )
