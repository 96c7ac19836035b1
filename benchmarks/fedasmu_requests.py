"""FedASMU: do the adaptive weights move, and does the selector learn to ask at a better moment?

    python benchmarks/fedasmu_requests.py --out runs/requests [--seeds 5]
    python benchmarks/fedasmu_requests.py --out runs/requests --tune

FedASMU runs with its request learned, after the first epoch (H1), half of them (H2), the last but one (H3),
at an epoch drawn anew for every task ("uniform": what a selector that learns nothing gets), never, and
learned with the server's weights fixed (-DA); then with larger learning rates of all five weights. `--tune`
instead records rewards where l* is uniform, under seeds of its own, and plays the selector alone on them with
other options, where nothing needs training. Called again on the same directory it goes on where it was.

The world was chosen with H2 and never alone, under seeds 100 to 104, where H2's mean accuracy is 1.7 points
above never's: twenty clients whose speeds differ up to 20 times, eight local epochs, Dirichlet(0.3) label
skew, and an ι of 0.5 and a γ of 20 at the start in place of 0 and 1. So an update, 17 versions old on
average, has a weight that stays above ⅓, and a fresh model one of about 0.6 instead of 0.08. No network:
tasks start and end at the same moments whatever is asked for, so runs of one seed differ by the merges alone.

Prints Markdown tables, mean ± standard deviation over the seeds, and writes them to table.md. R is the
reward: how much the loss on the batch at hand fell by the merge, 0 where there was no newer model to merge.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offbeat.algorithms.fedasmu.requests import LearnedTiming, log_probabilities
from offbeat.experiment import Experiment
from offbeat.recipes.build import make_algorithm, make_learner
from offbeat.recipes.load import check
from offbeat.runs.cached_vectors import CachedVectors
from offbeat.runs.client_states import ClientStates
from offbeat.sim.backend import LiveBackend
from offbeat.sim.executors.in_process import InProcess
from offbeat.sim.result import MemoryRecorder
from offbeat.sim.simulated_run import SimulatedRun
from offbeat.sim.simulation import Simulation

NEVER = float("inf")
EPOCHS, SECONDS = 8, 160
RECIPE: Mapping[str, Any] = {
    "clients": 20,
    "data": {
        "dataset": "fashion_mnist",
        "samples": 3000,
        "test_samples": 1000,
        "partition": {"kind": "label_dirichlet", "alpha": 0.3, "min_size": 40},
    },
    "model": {"name": "mlp", "hidden": [32]},
    "training": {"optimizer": "sgd", "lr": 0.1, "batch_size": 32},
    "algorithm": {"name": "fedasmu"},
    "until": {"seconds": SECONDS},
    "evaluate": {"seconds": 4},
}
CONTROLS, MERGE = {"iota": 0.5}, {"gamma": 20}
OPTIONS = {
    "name": "fedasmu",
    "epochs": EPOCHS,
    "size": 20,
    "period": 0.5,
    "controls": CONTROLS,
    "merge": MERGE,
}
TIMES, TARGET = (12, 20, 40, 80, 160), 0.75
STARTS = {"λ": 1.0, "σ": 0.5, "ι": 0.5, "γ": 20.0, "υ": 0.5}

UNIFORM = "uniform"
FIXED = {
    name: {"ask": {"kind": "fixed", "at": at}}
    for name, at in (("H1", "first"), ("H2", "half"), ("H3", "last"))
}
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "learned": {},
    **FIXED,
    UNIFORM: {},
    "never": {"ask": {"kind": "never"}, "merge": None},  # nothing is merged
    "learned-DA": {"controls": {**CONTROLS, "adaptive": False}},
}
RATES = {
    f"rates {rate:g}": {
        "controls": {**CONTROLS, "lam_rate": rate, "sigma_rate": rate, "iota_rate": rate},
        "merge": {**MERGE, "gamma_rate": rate, "upsilon_rate": rate},
    }
    for rate in (1e-2, 1e-1)
}
SELECTORS = {
    "defaults": LearnedTiming(),
    "ε = 0": LearnedTiming(epsilon=0.0),
    "ε = 0.05": LearnedTiming(epsilon=0.05),
    "ε = 0.5": LearnedTiming(epsilon=0.5),
    "κ = 0.1": LearnedTiming(q_rate=0.1),
    "ψ = 0": LearnedTiming(discount=0.0),
    "ψ = 0.9": LearnedTiming(discount=0.9),
    "ε = 0.05, κ = 0.1": LearnedTiming(epsilon=0.05, q_rate=0.1),
}
FIRST_SEED, TUNING_SEEDS, REPEATS, HORIZONS = 10, range(200, 204), 10, (15, 40, 300)


class Uniform:
    """l* drawn anew for every task."""

    def initial(self) -> None:
        """Nothing to learn."""

    def choose(self, client: int, epochs: int, state: None, generator: np.random.Generator) -> int:
        """Any of them."""
        return 1 + int(generator.integers(epochs - 1))

    def learn(self, client: int, reward: float, state: None) -> None:
        """Nothing to learn."""


@dataclass(frozen=True)
class Request:
    """One request: who made it when and after which epoch, and what came of it (no answer: β = R = 0)."""

    client: int
    t: float
    epoch: int
    beta: float
    reward: float
    answered: bool


@dataclass(frozen=True)
class Result:
    """One run: its requests, its accuracies (t, accuracy), and its weights by client and name at the end.

    `chances` are the shared model's probabilities of l* = 1, 2, …; `tasks` and `staleness` are of arrivals.
    """

    requests: list[Request]
    curve: list[tuple[float, float]]
    weights: dict[str, dict[str, float]]
    chances: list[float]
    tasks: int
    staleness: float

    def rewards(self, start: float = 0.0, end: float = NEVER) -> list[float]:
        """Of the requests of tasks that arrived in this time."""
        return [r.reward for r in self.requests if start <= r.t < end]

    def reward(self, start: float = 0.0, end: float = NEVER) -> float:
        """R, mean."""
        return mean(self.rewards(start, end))

    def accuracy(self, t: float) -> float:
        """Of the model at that time."""
        return [accuracy for at, accuracy in self.curve if at <= t][-1]

    @property
    def mean_accuracy(self) -> float:
        """Over all evaluations, which are equally far apart."""
        return mean([accuracy for _, accuracy in self.curve])

    @property
    def reached(self) -> float:
        """Virtual seconds to the target."""
        return next((t for t, accuracy in self.curve if accuracy >= TARGET), NEVER)


def mean(values: Sequence[float]) -> float:
    """NaN for none."""
    return statistics.fmean(values) if values else float("nan")


def simulate(options: Mapping[str, Any], seed: int, uniform: bool, slower: float) -> Result:
    """One run, driven here: the weights are read from the aggregator's and the clients' memories."""
    speeds = {"law": "ratio", "fastest": 0.025 * slower, "ratio": 20}
    recipe = check({**RECIPE, "world": {"seconds_per_step": speeds}}, "the benchmark's recipe")
    given = {**OPTIONS, **options}
    algorithm = make_algorithm({name: value for name, value in given.items() if value is not None})
    if uniform:
        algorithm = replace(algorithm, schedule=replace(algorithm.schedule, selector=Uniform()))
    learner = make_learner(recipe.with_seed(seed))
    world = replace(recipe.world, clients=recipe.clients)
    run = SimulatedRun.of(Experiment(algorithm, learner, seed, recipe.until, recipe.evaluate), world)
    clients, recorder = ClientStates(), MemoryRecorder()
    backend = LiveBackend(run, InProcess(learner, algorithm.objective), clients, CachedVectors())
    simulation = Simulation(run, backend, recorder)
    simulation.start()
    while simulation.stop_reason is None:
        simulation.step()
    tasks = simulation.server.counts["arrived"]
    return Result(
        list(requests([row.flat() for row in recorder.rows()], learner.steps_per_epoch)),
        [(m.t, m.accuracy or 0.0) for m in recorder.evaluations()],
        weights(backend.tensors.memory, clients, recipe.clients),
        chances(simulation.server.state),
        tasks,
        simulation.engine.staleness_sum / tasks,
    )


def requests(journal: Sequence[Mapping[str, Any]], epoch: Callable[[int], int]) -> Iterator[Request]:
    """The requests of the tasks that arrived."""
    after = {e["task"]: e.get("ask_after", 0) // epoch(e["client"]) for e in journal if e["name"] == "train"}
    for e in journal:
        if e["name"] == "arrived" and after[e["task"]]:
            beta, reward = e.get("beta", 0.0), e.get("reward", 0.0)
            yield Request(e["client"], e["t"], after[e["task"]], beta, reward, "beta" in e)


def weights(memory: Mapping[str, torch.Tensor], clients: ClientStates, n: int) -> dict[str, dict[str, float]]:
    """λ, σ, ι of each client that has uploaded, γ and υ of those that have merged."""
    found: dict[str, dict[str, float]] = {}
    for client in range(n):
        server, own = memory.get(f"controls {client}"), clients.get(client).get("merge")
        found[str(client)] = {
            **(dict(zip("λσι", server.tolist()[:3], strict=True)) if server is not None else {}),
            **(dict(zip("γυ", own.tolist(), strict=True)) if own is not None else {}),
        }
    return found


def chances(state: Any) -> list[float]:
    """What the shared model has learned, if there is one."""
    theta = getattr(getattr(state, "selector", None), "theta", None)
    return [] if theta is None else chances_of(theta)


def chances_of(theta: Mapping[str, torch.Tensor]) -> list[float]:
    """The shared model's probabilities of l* = 1, 2, …"""
    return [float(chance.detach().exp()) for chance in log_probabilities(dict(theta), EPOCHS)]


# ---- the runs ----


def results(
    study: Mapping[str, Mapping[str, Any]], seeds: Sequence[int], out: Path, slower: float
) -> dict[str, list[Result]]:
    """All runs of a study, by label in the order of the seeds; those that are in `out` are read."""
    found: dict[str, list[Result]] = {label: [] for label in study}
    began = time.monotonic()
    for seed in seeds:
        for label, options in study.items():
            file = out / f"{label.replace(' ', '_')}-{seed}.json"
            if not file.exists():
                result = simulate(options, seed, label == UNIFORM, slower)
                file.write_text(json.dumps(result, default=vars), encoding="utf-8")
                print(f"{label}, seed {seed}: {time.monotonic() - began:.0f} s", flush=True)
            found[label].append(read(file))
    return found


def read(file: Path) -> Result:
    """A result that was written."""
    data = json.loads(file.read_text(encoding="utf-8"))
    own = {"requests": [Request(**r) for r in data["requests"]], "curve": [tuple(m) for m in data["curve"]]}
    return Result(**{**data, **own})


# ---- the tables ----


def spread(values: Sequence[float], digits: int = 3, sign: bool = False) -> str:
    """Mean ± standard deviation over seeds; "-" if one is missing."""
    if any(v != v or abs(v) == NEVER for v in values):
        return "-"
    form = f"{'+' if sign else ''}.{digits}f"
    return f"{mean(values):{form}} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Markdown."""
    return [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def strategies(found: Mapping[str, Sequence[Result]]) -> list[str]:
    """What each strategy got."""
    rows = []
    for label, runs in found.items():
        asked = [r.requests for r in runs]
        some = all(asked)
        rows.append(
            [
                label,
                spread([r.reward() for r in runs], 4, sign=True) if some else "none",
                f"{100 * mean([mean([q.answered for q in a]) for a in asked]):.0f} %" if some else "none",
                f"{mean([mean([q.beta for q in a if q.answered]) for a in asked]):.2f}" if some else "none",
                *(spread([r.accuracy(t) for r in runs]) for t in TIMES),
                spread([r.mean_accuracy for r in runs], 4),
                f"{mean([r.reached for r in runs if r.reached < NEVER]):.0f} "
                f"({sum(r.reached < NEVER for r in runs)} of {len(runs)})",
            ]
        )
    head = "strategy", "R", "answered", "β", *(f"at {t} s" for t in TIMES), "mean", f"s to {100 * TARGET:g} %"
    return table(head, rows)


def pairs(found: Mapping[str, Sequence[Result]], one: str, others: Sequence[str]) -> list[str]:
    """`one` minus each of the others, seed by seed, and in how many seeds it is better."""
    measures: list[tuple[Callable[[Result], float], int, int]] = [
        (lambda r: r.reward(), 4, 1),
        (lambda r: r.accuracy(40), 3, 1),
        (lambda r: r.accuracy(SECONDS), 3, 1),
        (lambda r: r.mean_accuracy, 4, 1),
        (lambda r: min(r.reached, SECONDS), 0, -1),
    ]
    rows = []
    for other in others:
        row = [f"{one} − {other}"]
        for measure, digits, better in measures:
            apart = [measure(a) - measure(b) for a, b in zip(found[one], found[other], strict=True)]
            wins = f" ({sum(better * d > 0 for d in apart)} of {len(apart)})"
            row.append("none" if apart[0] != apart[0] else spread(apart, digits, sign=True) + wins)
        rows.append(row)
    times = "at 40 s", f"at {SECONDS} s", "mean accuracy", f"s to {100 * TARGET:g} %"
    return table(("difference (better in)", "R", *times), rows)


def moments(found: Mapping[str, Sequence[Result]]) -> list[str]:
    """What there is to learn: R by l*, where l* is uniform."""
    rows = []
    for epoch in range(1, EPOCHS):
        asked = [[q for q in r.requests if q.epoch == epoch] for r in found[UNIFORM]]
        rows.append(
            [
                str(epoch),
                spread([mean([q.reward for q in a]) for a in asked], 4, sign=True),
                f"{mean([statistics.pstdev([q.reward for q in a]) for a in asked if a]):.3f}",
                f"{100 * mean([mean([q.answered for q in a]) for a in asked]):.0f} %",
                *(
                    f"{mean([q.reward for a in asked for q in a if begin <= q.t < end]):+.4f}"
                    for begin, end in thirds()
                ),
            ]
        )
    head = "l\\*", "R", "standard deviation of one R", "answered", "R, first third", "middle", "last"
    return table(head, rows)


def opposed(found: Mapping[str, Sequence[Result]]) -> int:
    """In how many pairs of fixed moments the one with the higher R has the lower accuracy."""
    return sum(
        (a.reward() - b.reward()) * (a.mean_accuracy - b.mean_accuracy) < 0
        for runs in zip(*(found[h] for h in FIXED), strict=True)
        for a, b in combinations(runs, 2)
    )


def thirds() -> list[tuple[float, float]]:
    """Of the run's time."""
    return [(SECONDS * i / 3, SECONDS * (i + 1) / 3) for i in range(3)]


def course(found: Mapping[str, Sequence[Result]]) -> list[str]:
    """The learned l* and what it brought, in the thirds of the run."""
    rows = []
    for name, (begin, end) in zip(("first", "middle", "last"), thirds(), strict=True):
        asked = [q.epoch for r in found["learned"] for q in r.requests if begin <= q.t < end]
        fixed = [mean([found[h][i].reward(begin, end) for h in FIXED]) for i in range(len(found["learned"]))]
        rows.append(
            [
                name,
                *(f"{100 * asked.count(epoch) / len(asked):.0f} %" for epoch in range(1, EPOCHS)),
                spread([r.reward(begin, end) for r in found["learned"]], 4, sign=True),
                spread([r.reward(begin, end) for r in found[UNIFORM]], 4, sign=True),
                spread(fixed, 4, sign=True),
            ]
        )
    head = ("third", *(f"l\\* = {e}" for e in range(1, EPOCHS)), "R learned", "R uniform", "R of H1-H3")
    return table(head, rows)


def moved(found: Mapping[str, Sequence[Result]]) -> list[str]:
    """Where the weights end up: mean over clients and seeds, and the farthest from the start."""
    rows = []
    for label, runs in found.items():
        row = [label]
        for name, start in STARTS.items():
            ends = [own[name] for r in runs for own in r.weights.values() if name in own]
            far = max((abs(e - start) for e in ends), default=float("nan"))
            row.append(f"{mean(ends):.4g} ({far:.2g})" if ends else "none")
        rows.append(row)
    return table(("", *(f"{name} ({start:g} at the start)" for name, start in STARTS.items())), rows)


def report(seeds: Sequence[int], out: Path, slower: float) -> list[str]:
    """The study."""
    found = results({**STRATEGIES, **RATES}, seeds, out, slower)
    main = {label: found[label] for label in STRATEGIES}
    rates = {label: found[label] for label in ("learned-DA", "learned", *RATES)}
    learned = found["learned"]
    average = [
        mean([h.reward() - r.reward() for h in at])
        for r, *at in zip(learned, *(found[h] for h in FIXED), strict=True)
    ]
    accuracy = [
        mean([h.mean_accuracy - r.mean_accuracy for h in at])
        for r, *at in zip(learned, *(found[h] for h in FIXED), strict=True)
    ]
    drift = max(abs(c * (EPOCHS - 1) - 1) for r in learned for c in r.chances)
    return [
        f"{len(seeds)} seeds; {mean([r.tasks for r in learned]):.0f} updates in a run, "
        f"{mean([r.staleness for r in learned]):.1f} versions old on average.",
        "",
        *strategies(main),
        *pairs(main, "learned", [label for label in STRATEGIES if label != "learned"]),
        "Learned − the mean of H1-H3: "
        f"R {spread([-a for a in average], 4, sign=True)}, better in {sum(a < 0 for a in average)} of "
        f"{len(seeds)}; mean accuracy {spread([-a for a in accuracy], 4, sign=True)}, better in "
        f"{sum(a < 0 for a in accuracy)}.",
        "",
        f"In {opposed(found)} of the {3 * len(seeds)} pairs of H1, H2 and H3 of one seed, the one with the "
        "higher R has the lower mean accuracy.",
        "",
        *moments(found),
        *course(found),
        f"The shared model's chances of l* end within {100 * drift:.2g} % of {1 / (EPOCHS - 1):.3f}, "
        "where they began.",
        "",
        *strategies(rates),
        *pairs(rates, "learned", list(RATES)),
        *moved(rates),
    ]


# ---- the selector alone ----


def play(
    selector: LearnedTiming | Uniform, by_epoch: Mapping[int, Sequence[float]], tasks: int, seed: int
) -> float:
    """Mean expected R of so many tasks of each of 20 clients; each R is drawn from the recorded ones."""
    generator, state, total = np.random.default_rng(seed), selector.initial(), 0.0
    expected = {epoch: mean(rewards) for epoch, rewards in by_epoch.items()}
    for _ in range(tasks):
        for client in range(20):
            ask = selector.choose(client, EPOCHS, state, generator)
            rewards = by_epoch[ask]
            selector.learn(client, rewards[int(generator.integers(len(rewards)))], state)
            total += expected[ask]
    return total / (20 * tasks)


def trained_before(rate: float, passes: int, recorded: Sequence[Request]) -> list[float]:
    """The shared model's chances after REINFORCE on recorded requests."""
    selector, generator = LearnedTiming(rate=rate), np.random.default_rng(0)
    state = selector.initial()
    for _ in range(passes):
        for i in generator.permutation(len(recorded)):
            state.first[0], state.last[0] = EPOCHS, (0, 0, recorded[i].epoch)
            selector.learn(0, recorded[i].reward, state)
    return chances_of(state.theta)


def tuning(out: Path, slower: float) -> list[str]:
    """The selector's options, on rewards recorded where l* was uniform."""
    found = results({UNIFORM: {}}, TUNING_SEEDS, out, slower)
    recorded = [q for r in found[UNIFORM] for q in r.requests]
    by_epoch = {e: [q.reward for q in recorded if q.epoch == e] for e in range(1, EPOCHS)}
    expected = [mean(rewards) for rewards in by_epoch.values()]
    rows = []
    for label, selector in {UNIFORM: Uniform(), **SELECTORS}.items():
        row = [label]
        for tasks in HORIZONS:
            repeats = REPEATS if tasks < max(HORIZONS) else REPEATS // 3
            row.append(spread([play(selector, by_epoch, tasks, seed) for seed in range(repeats)], 4))
        rows.append(row)
        print(f"{label}: {row[1:]}", flush=True)
    before = []
    for rate, passes in ((1e-3, 1), (1e-1, 1)):
        learned = trained_before(rate, passes, recorded)
        won = float(np.dot(learned, expected))
        before.append([f"{rate:g}", str(passes * len(recorded)), f"{learned[0]:.3f}", f"{won:.4f}"])
    return [
        f"{len(recorded)} requests recorded. Expected R by l*: " + ", ".join(f"{e:+.4f}" for e in expected),
        "",
        *table(("options", *(f"R, {tasks} tasks each" for tasks in HORIZONS)), rows),
        *table(("η_RL", "requests learned from", "chance of l* = 1", "R of a first task"), before),
    ]


def main() -> None:
    """Run what is not there yet and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--tune", action="store_true", help="play other options of the selector on recorded rewards"
    )
    parser.add_argument(
        "--slower", type=float, default=1.0, metavar="FACTOR",
        help="local steps take FACTOR times as long: for a first look, not for numbers",
    )  # fmt: skip
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    out = options.out / "tune" if options.tune else options.out
    out.mkdir(parents=True, exist_ok=True)
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    lines = tuning(out, options.slower) if options.tune else report(seeds, out, options.slower)
    lines.append(f"This call took {(time.monotonic() - began) / 60:.0f} minutes.")
    text = "\n".join(lines)
    (out / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
