"""What the server computes for an arrival, in copies of the model.

    python benchmarks/aggregators.py [--sizes 1e6 1e7] [--clients 4] [--repeats 15]

Every algorithm is simulated with updates that cost nothing to make. Timed is `GlobalModel.aggregate`:
the aggregator, the server steps, w + step, and whatever else an aggregation does. Right before each, a
copy of d float32 values from one tensor to another is timed, both of which have been written before. An
aggregation's time over its copy's, divided by the number of updates it took, is one measurement; the
table has their medians and the quartiles. What comes before everybody has uploaded a few times is left
out, so FedASMU's controls take their step. FedFa's exact sum every 1,000 arrivals is not met.

Models of 1e8 values take 0.4 GB each. With C clients there are up to about 3 C + 6 of them, so use
`--clients 2 --window-sizes 3` there.
"""

import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
from harness import Row, Rows, main, ratios

import offbeat as ob
from offbeat.algorithms import ALGORITHMS
from offbeat.core import engine
from offbeat.core.commands import Aggregate
from offbeat.core.global_model import GlobalModel
from offbeat.core.layout import Entry, Layout
from offbeat.core.learner import NO_INPUTS, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.world.channel import Channel

ROUNDS_BEFORE = 3  # so many uploads of every client are left out
# Options of an algorithm: `size` and the like are so small that few versions are in flight.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "fedbuff": {"size": 4},
    "ca2fl": {"size": 4},
    "fedasmu": {"size": 2, "period": 1.0, "ask": {"kind": "never"}, "epochs": 2},
    "fedssmu": {"ask": {"kind": "never"}, "epochs": 2},
    "fedfa": {"size": 3},
    "port": {"size": 2},
    "wireless": {"scheduled": 2, "period": 3.0, "policy": {"kind": "random"}},
}
CHANNELS = {"wireless": Channel()}  # algorithms whose world has one
WINDOWED = {"fedfa": ("delta", "param")}  # algorithms with a window of K, of these kinds


@dataclass(frozen=True)
class Idle:
    """Clients whose updates, all the same, are there at once; the numbers in them are random."""

    clients: int
    delta: torch.Tensor
    shared: torch.Tensor

    def samples(self, client: int) -> int:
        """Unequal, as weights are then."""
        return 10 + client

    def steps_per_epoch(self, client: int) -> int:
        """Ten."""
        return 10

    def label_counts(self, client: int) -> None:
        """There are no classes."""

    def initial(self, seed: int) -> Model:
        """Ones, in one layer."""
        sizes = {"weight": self.delta.numel() - 10, "bias": 10}
        layout = Layout(tuple(Entry(name, (n,), "float32", "parameter") for name, n in sizes.items()))
        return Model(layout, torch.ones_like(self.delta), torch.zeros(0, dtype=torch.int64))

    def train(
        self, base: Model, task: LocalTask, objective: Objective, inputs: TaskInputs = NO_INPUTS
    ) -> LocalResult:
        """The update; nobody writes to it."""
        shared = self.shared if objective.shared_vectors else None
        return LocalResult(self.delta, base.integers, {"loss": 1.0}, lr=0.1, shared=shared)

    def evaluate(self, model: Model) -> Mapping[str, float]:
        """Nothing to measure."""
        return {}


@dataclass
class Timing:
    """Seconds of each aggregation and of the copy before it, and how many updates it took."""

    source: torch.Tensor
    target: torch.Tensor
    threads: int
    aggregations: list[float] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)

    def around(self, aggregate: Any, model: GlobalModel, command: Aggregate) -> None:
        """Time a copy and the aggregation."""
        torch.set_num_threads(self.threads)
        start = time.perf_counter()
        self.target.copy_(self.source)
        middle = time.perf_counter()
        aggregate(model, command)
        end = time.perf_counter()
        self.copies.append(middle - start)
        self.aggregations.append(end - middle)
        self.updates.append(len(command.tasks))


@contextmanager
def timed(timing: Timing) -> Iterator[None]:
    """Every aggregation in here is timed."""

    def aggregate(model: GlobalModel, command: Aggregate) -> None:
        timing.around(GlobalModel.aggregate, model, command)

    # The engine calls the method by this table, so a replaced method of the class would not be called.
    with patch.dict(engine._MOVES, {Aggregate: aggregate}):
        yield


def measure(
    name: str, options: Mapping[str, Any], learner: Idle, copy: tuple[torch.Tensor, torch.Tensor],
    threads: int, repeats: int,
) -> Row:  # fmt: skip
    """Simulate one algorithm and sum its aggregations up."""
    algorithm = ALGORITHMS[name](**options)
    timing = Timing(*copy, threads)
    before = ROUNDS_BEFORE * learner.clients + int(options.get("size", 0))
    # Speeds 1 to 3: FedAT then has two tiers, and arrivals are of different staleness.
    speeds = [1 + 2 * i / max(1, learner.clients - 1) for i in range(learner.clients)]
    with timed(timing):
        run = ob.simulate(
            algorithm, ob.World(speeds, jitter=0.05, channel=CHANNELS.get(name)), learner,
            until=ob.Until(versions=before + repeats), evaluate=None,
        )  # fmt: skip
    times = [t / n for t, n in zip(timing.aggregations, timing.updates, strict=True)][before:]
    copies = timing.copies[before:]
    low, middle, high = statistics.quantiles(ratios(times, copies), n=4)
    return {
        "copies per arrival": f"{middle:.2f}",
        "quartiles": f"{low:.2f} to {high:.2f}",
        "ms per arrival": 1e3 * statistics.median(times),
        "ms of a copy": 1e3 * statistics.median(copies),
        "updates at a time": float(statistics.mean(timing.updates[before:])),
        "state, models": run.summary.server_state_bytes / learner.delta.nbytes,
    }


def cases(windows: Sequence[int]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every algorithm with its options, and those with a window for each of its sizes."""
    for name in ALGORITHMS:
        if name not in WINDOWED:
            yield name, name, dict(OPTIONS.get(name, {}))
            continue
        for kind in WINDOWED[name]:
            for size in windows:
                yield name, f"{name} {kind}, K = {size}", {"kind": kind, "size": size}


def aggregators(
    sizes: tuple[float, ...] = (1e6, 1e7), clients: int = 4, repeats: int = 15,
    threads: tuple[int, ...] = tuple(sorted({1, torch.get_num_threads()})),
    window_sizes: tuple[int, ...] = (2, 5, 20, 50), algorithms: tuple[str, ...] = tuple(ALGORITHMS),
) -> Rows:  # fmt: skip
    """Measure every algorithm at every size.

    sizes: numbers of parameters d
    repeats: aggregations timed, at least 5
    window_sizes: K of FedFa
    """
    if repeats < 5:
        sys.exit("--repeats must be at least 5")
    torch.manual_seed(0)
    for d in map(int, sizes):
        delta, source = torch.randn(d).mul_(1e-3), torch.randn(d)
        copy, learner = (source, source.clone()), Idle(clients, delta, source)
        for number, (name, label, given) in product(threads, cases(window_sizes)):
            if name in algorithms:
                key = {"d": f"{d:.0e}", "threads": number, "algorithm": label}
                yield key, partial(measure, name, given, learner, copy, number, repeats)


if __name__ == "__main__":
    main(aggregators)
