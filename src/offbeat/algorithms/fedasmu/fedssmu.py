"""FedSSMU: FedASMU's updates in synchronous rounds (Jia et al., 2025, Algorithm 3).

In every round m' random clients train. Each update is mixed in as it arrives, with k, the number of those
mixed in before it in the round, for staleness: s = k + 1, and the number of the round for t. A device
that asks in mid-training gets w_{g,k}; there is nothing new for it while k = 0. The round is over when
all have uploaded or are gone. An update with k + 1 > τ_max is discarded and does not raise k.
"""

from collections.abc import Iterator
from dataclasses import field
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from offbeat.algorithms.factory import algorithm
from offbeat.algorithms.fedasmu import MOVED
from offbeat.algorithms.fedasmu.aggregation import AdaptiveMixing, Controls, ControlsOption
from offbeat.algorithms.fedasmu.merging import FreshMerge, Merge, MergeOption
from offbeat.algorithms.fedasmu.requests import AskEvery, LearnedTiming, Selector, with_requests
from offbeat.algorithms.option_types import Concurrency, Count, Epochs, Steps
from offbeat.algorithms.schedules import train
from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Aggregate, Command, Drop, Send
from offbeat.core.events import Arrived, ClientId, Event, Left, Lost, WantsModel
from offbeat.core.programme import Programme, programme
from offbeat.core.schedule import Schedule, View
from offbeat.core.validation import checked_dataclass
from offbeat.local.objectives import Plain

__all__ = ["MixedRounds", "fedssmu"]


@dataclass
class MixedRound:
    """The number of the current round, from 1, and the clients that have not answered yet."""

    number: int = 0
    expected: set[ClientId] = field(default_factory=set)


@checked_dataclass
class MixedRounds(Schedule):
    """Rounds of m' random clients (`concurrency`; None: all): each update is aggregated as it arrives."""

    programme: Programme
    concurrency: Concurrency = None
    tau_max: Count | None = None
    snapshots = True

    @property
    def largest_aggregation(self) -> int | None:
        """Each update is aggregated as it comes."""
        return 1

    def initial(self) -> MixedRound:
        """No round has begun."""
        return MixedRound()

    def on(self, event: Event, state: MixedRound, view: View) -> Iterator[Command]:
        """Algorithm 3, the server."""
        match event:
            case WantsModel():
                if view.version > view.task(event.task).base:
                    yield Send(event.client, clock=state.number)
                return
            case Arrived():
                state.expected.discard(event.client)
                k = view.task(event.task).staleness
                if self.tau_max is not None and k + 1 > self.tau_max:
                    yield Drop(event.task, f"staleness {k + 1} is above tau_max = {self.tau_max}")
                else:
                    yield Aggregate((event.task,), {"round": state.number, "k": k})
            case Lost() | Left():
                state.expected.discard(event.client)
        if not state.expected:
            clients = view.sample_idle(self.concurrency or len(view.fleet))
            state.number += bool(clients)
            state.expected.update(clients)
            for client in clients:
                yield train(client, self.programme, view)


@algorithm(
    paper="Jia et al., Efficient Federated Learning with Timely Update Dissemination, 2025, "
    "Algorithm 3, Eq. 1-11",
    kind="synchronous",
    removed={
        **MOVED,
        "rate": "give controls.lam_rate, controls.sigma_rate and controls.iota_rate",
        "device_rate": "give merge.gamma_rate and merge.upsilon_rate",
    },
)
def fedssmu(
    steps: Steps = None,
    epochs: Epochs = None,
    *,
    clients_per_round: Annotated[
        Count | None, Field(description="clients of a round m'; None means all")
    ] = None,
    tau_max: Annotated[Count, Field(description="most staleness k + 1 of an update used")] = 99,
    controls: ControlsOption = Controls(),
    ask: Selector = LearnedTiming(),
    ask_every: AskEvery = None,
    merge: MergeOption = Merge(),
) -> Algorithm:
    """Rounds whose updates are mixed in one by one on arrival; clients merge the round's model so far.

    FedASMU's equations, where t is the number of the round and s is 1 plus the number of updates mixed in
    before.
    """
    local = programme(steps, epochs, otherwise=5)
    server = MixedRounds(local, clients_per_round, tau_max)
    schedule, objective = with_requests(server, FreshMerge(Plain(), merge), ask, ask_every)
    return Algorithm(schedule, AdaptiveMixing(controls, local.epochs), objective)
