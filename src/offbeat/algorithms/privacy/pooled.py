"""Pooling of updates until enough clients are in, around any schedule.

With privacy no version may come from fewer than m clients, nor, where sums are secure, from updates of
which one has most of the weight. So what the schedule inside aggregates is pooled, and released together:

- at least m updates of different clients, at most M, the oldest first;
- of a client's later ones the newest waits, and the others are dropped: it is in each release once, so its
  queue would grow with its lead, and get older without end;
- one release at a time, and more only while M updates are there: a client's second update, released alone,
  would have the noise of a whole release;
- none with more than ρ of the weight. If M of them break this, the heaviest waits;
- updates that the aggregator keeps apart, such as those of FedAT's tiers, are pooled apart.

The schedule inside goes on as if its updates were aggregated, dropped ones included: which clients train, and
when, does not change, and as many clients have an update in the pool. A client that leaves leaves its own.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from offbeat.core.aggregator import FullWeight, SumOnly
from offbeat.core.commands import Aggregate, Command, Drop, Stop
from offbeat.core.events import Begin, ClientId, Event, TaskId
from offbeat.core.privacy.privacy_options import Privacy
from offbeat.core.privacy.refusals import Refusal
from offbeat.core.privacy.sums import integer_weight, largest_weight
from offbeat.core.schedule import Schedule, ScheduleWrapper, View

NEWER = "a newer update of its client waits for a release"
"""Why an update is dropped that was pooled."""


@dataclass
class PooledUpdate:
    """An update that waits for its release, with its integer weight."""

    task: TaskId
    client: ClientId
    weight: int
    note: Mapping[str, Any]
    server_step: bool


@dataclass
class Pools:
    """The state of the schedule inside, and the pooled updates in order of arrival, apart by notes."""

    inner: Any
    full: FullWeight | None = None
    waiting: dict[tuple[Any, ...], list[PooledUpdate]] = field(default_factory=dict)


@dataclass(frozen=True)
class Pooled(ScheduleWrapper):
    """Any schedule, whose updates are released together once they are of enough clients.

    The note of a release has `weights`, the integer weights of its tasks in order, and `scale`, the factor of
    their sum: with these and the updates a version is determined.

    Attributes:
        inner: The schedule.
        sums: The aggregator, which says how much updates count.
        privacy: Options of the sums, complete.
    """

    inner: Schedule
    sums: SumOnly
    privacy: Privacy

    @property
    def largest_aggregation(self) -> int:
        """Most updates of a release."""
        assert self.privacy.most is not None
        return self.privacy.most

    def initial(self) -> Pools:
        """Nothing is pooled."""
        return Pools(self.inner.initial())

    def on(self, event: Event, state: Pools, view: View) -> Iterator[Command]:
        """The schedule's commands. Updates to aggregate are pooled, and released when that is allowed."""
        if isinstance(event, Begin):
            state.full = self._full_weight(view)
        for command in self.inner.on(event, state.inner, view):
            if isinstance(command, Aggregate):
                yield from self._pool(command, state, view)
                continue
            if isinstance(command, Stop):
                yield from self._drop(state)
            yield command

    def _full_weight(self, view: View) -> FullWeight:
        """The largest client at the beginning, unless the options say otherwise."""
        fleet, least = view.fleet, self.privacy.fewest
        if len(fleet) < least:
            raise Refusal.TOO_FEW_CLIENTS.error(least=least, clients=len(fleet))
        samples = max(fleet.samples(client) for client in fleet)
        return FullWeight(
            self.privacy.full_weight or samples, self.privacy.full_share or samples / fleet.total_samples
        )

    def _pool(self, command: Aggregate, state: Pools, view: View) -> Iterator[Command]:
        """Pool the updates that the schedule inside aggregates, then release as many as allowed."""
        assert state.full is not None
        tasks = [view.task(task) for task in command.tasks]
        importances = self.sums.importances(tasks, state.full, command.note)
        pool = state.waiting.setdefault(tuple(command.note.get(name) for name in self.sums.apart), [])
        for task, importance in zip(tasks, importances, strict=True):
            weight = integer_weight(importance, self.privacy.bits)
            pool.append(PooledUpdate(task.id, task.client, weight, command.note, command.server_step))
        released = yield from self._release(command, pool, state.full, view)
        yield from self._keep_newest(pool)
        if not released:
            # Without the dropped updates, none of the others may have too much of the weight.
            yield from self._release(command, pool, state.full, view)

    def _release(
        self, command: Aggregate, pool: list[PooledUpdate], full: FullWeight, view: View
    ) -> Generator[Command, None, bool]:
        """Release as many updates as allowed; returns whether any were released."""
        released = False
        while (batch := self._choose(pool)) and not (released and len(batch) < self.largest_aggregation):
            released = True
            tasks = [view.task(pooled.task) for pooled in batch]
            weights = [pooled.weight for pooled in batch]
            rounded = [weight / largest_weight(self.privacy.bits) for weight in weights]
            scale = self.sums.sum_scale(tasks, rounded, full)
            newest = max(batch, key=pool.index)
            for pooled in batch:
                pool.remove(pooled)
            yield replace(
                command,
                tasks=tuple(pooled.task for pooled in batch),
                note={**newest.note, "weights": weights, "scale": scale},
                server_step=any(pooled.server_step for pooled in batch),
            )
        return released

    def _keep_newest(self, pool: list[PooledUpdate]) -> Iterator[Command]:
        """Drop a client's pooled updates except its newest, that of its last task."""
        newest = {own.client: own for own in sorted(pool, key=lambda own: own.task)}
        for own in list(pool):
            if own is not newest[own.client]:
                pool.remove(own)
                yield Drop(own.task, NEWER)

    def _choose(self, pool: Sequence[PooledUpdate]) -> list[PooledUpdate]:
        """The updates of the next release, by task number; empty where there is none yet."""
        least, most = self.privacy.fewest, self.largest_aggregation
        oldest: dict[ClientId, PooledUpdate] = {}
        for pooled in pool:
            oldest.setdefault(pooled.client, pooled)
        candidates = list(oldest.values())
        batch = candidates[:most]
        while len(batch) >= least and not self._balanced(batch):
            if len(batch) < most:
                # One more update may balance the batch.
                return []
            candidates.remove(max(batch, key=lambda pooled: pooled.weight))
            batch = candidates[:most]
        return sorted(batch, key=lambda pooled: pooled.task) if len(batch) >= least else []

    def _balanced(self, chosen: Sequence[PooledUpdate]) -> bool:
        """Whether none of these has more than ρ of the weight, where sums are secure."""
        weights = [own.weight for own in chosen]
        return self.privacy.secure is None or max(weights) <= self.privacy.dominance * sum(weights)

    def _drop(self, state: Pools) -> Iterator[Command]:
        """Drop the pooled updates, at the end of the run."""
        reason = f"the run ended before {self.privacy.fewest} updates were together"
        for pool in state.waiting.values():
            for own in pool:
                yield Drop(own.task, reason)
        state.waiting.clear()
