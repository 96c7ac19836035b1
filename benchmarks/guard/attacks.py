"""Attacked federations: what the guard refuses, what accuracy is lost, and how soon it is back.

    python benchmarks/guard/attacks.py --out runs/attacks.csv
    python benchmarks/guard/attacks.py --out runs/attacks.csv --table
    python benchmarks/guard/attacks.py --out runs/auroc.csv --world auroc

A real server's coordinator, with its default guard and rollback and with test data, runs in virtual time with
sites that train on digits, of which some attack from the run's beginning, or from its fortieth version on,
until a moment after which they are silent. Each version is evaluated. Rows have the number of the attacking
updates that were refused, the lowest and the median metric of the attack's second half, and the number of
versions after the attack until the metric is within 0.05 of the honest run's at its end. An attack from the
beginning leaves at best the initial model: `from_scratch` is the number of versions that the honest sites
need from there.

The metric is the accuracy, and the server measures it beside the loss. Other worlds have other metrics:
`auroc` has two classes, of five digits each, and nothing but an AUROC under a name of one's own; `imbalanced`
has a tenth of positives, with AUROC, sensitivity and specificity; in `loss`, the server measures the loss
alone. They have three sites, of which one attacks, three algorithms and five attacks.

Attackers know the current model w. `n` is the norm of their honest update, U a fixed random direction.
"""

import argparse
import csv
import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.core.learner import LocalResult, LocalTask
from offbeat.experiment import Experiment, PreparedRun
from offbeat.metrics import AUROC
from offbeat.net.messages import (
    FromServer,
    Leave,
    Register,
    TaskAssignment,
    TaskCancel,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.server_options import ServerOptions

FIELDS = (
    "algorithm", "sites", "attackers", "speed", "attack", "begins", "seed", "updates", "refused", "skipped",
    "rollbacks", "honest", "from_scratch", "lowest", "during", "final", "versions_until_back",
)  # fmt: skip
LATER, BACK = 40, 0.05
ALGORITHMS: dict[str, Callable[[int], ob.Algorithm]] = {
    "fedasync": lambda _: ob.fedasync(steps=5),
    "fedbuff": lambda sites: ob.fedbuff(size=max(2, sites // 2 + 1), concurrency=sites, steps=5),
    "fedavg": lambda _: ob.fedavg(steps=5),
    "fedcompass": lambda _: ob.fedcompass(q_min=2, q_max=20),
    "fedasmu": lambda sites: ob.fedasmu(epochs=1, period=3.0, size=sites),
}


# ---- the attacks ----


@dataclass(frozen=True)
class Situation:
    """What an attacker knows: its honest update, the model it was sent, steps, and a fixed direction."""

    result: LocalResult
    values: Tensor
    parameters: int
    steps: int
    direction: Tensor

    def update(self, parameters: Tensor) -> Tensor:
        """An update with these changes of the parameters, and the honest ones of the buffers."""
        delta = self.result.delta.clone()
        delta[: self.parameters] = parameters
        return delta

    @property
    def norm(self) -> float:
        """Norm of the honest update."""
        return float(self.result.delta[: self.parameters].norm())


def _buffers(s: Situation) -> Tensor:
    """Take the buffers to -1.2 times their values: running variances end below 0."""
    delta = s.result.delta.clone()
    delta[s.parameters :] = -2.2 * s.values[s.parameters :]
    return delta


ATTACKS: dict[str, Callable[[Situation], Tensor]] = {
    "95 (1 + |w|)": lambda s: s.update(95 * (1 + float(s.values.norm())) * s.steps**0.5 * s.direction),
    "95": lambda s: s.update(95 * s.steps**0.5 * s.direction),
    "1.4 (1 + |w|)": lambda s: s.update(1.4 * (1 + float(s.values.norm())) * s.steps**0.5 * s.direction),
    "3e20": lambda s: s.update(3e18 * s.direction),
    "25 n U": lambda s: s.update(25 * s.norm * s.direction),
    "-10 n": lambda s: s.update(-10 * s.result.delta[: s.parameters]),
    "-n": lambda s: s.update(-s.result.delta[: s.parameters]),
    "-18 w/|w|": lambda s: s.update(-18 * s.norm * s.values[: s.parameters] / s.values.norm()),
    "-n / 4": lambda s: s.update(-0.25 * s.result.delta[: s.parameters]),
    "1e-6 n U": lambda s: s.update(1e-6 * s.norm * s.direction),
    "buffers": _buffers,
    "nan": lambda s: s.result.delta * float("nan"),
}


ALL_ATTACKS = [attack for attack in ATTACKS if attack != "-n / 4"]
"""Those of the world `accuracy`."""
SOME_ATTACKS = "25 n U", "-10 n", "-n", "-n / 4", "1e-6 n U"
"""Those that the worlds other than `accuracy` have."""


# ---- a federation in virtual time ----


def share_found(label: int) -> Callable[[Tensor, Tensor], float]:
    """The share of a label's samples that are found."""
    return lambda scores, target: float((scores.argmax(1) == target)[target == label].float().mean())


@dataclass(frozen=True)
class Kind:
    """What a kind of world learns, what its server measures beside the loss, and what is reported."""

    relabel: Callable[[Tensor], Tensor]
    classes: int
    metrics: Mapping[str, Any]
    measured: tuple[str, ...]
    reported: str


KINDS = {
    "accuracy": Kind(lambda y: y, 10, {"accuracy": "accuracy"}, ("accuracy",), "accuracy"),
    "auroc": Kind(lambda y: (y >= 5).long(), 2, {"own_auroc": AUROC()}, ("own_auroc",), "own_auroc"),
    "imbalanced": Kind(
        lambda y: (y == 9).long(), 2,
        {"auroc": AUROC(), "sensitivity": share_found(1), "specificity": share_found(0)},
        ("auroc", "sensitivity", "specificity"), "auroc",
    ),
    "loss": Kind(lambda y: y, 10, {"accuracy": "accuracy"}, (), "accuracy"),
}  # fmt: skip


@cache
def learner(world: str, sites: int, seed: int) -> ob.TorchLearner:
    """Digits, shared out equally; a small network with BatchNorm."""
    source, kind = ob.load("digits", samples=1200, test_samples=360, seed=seed), KINDS[world]
    parts = np.array_split(np.arange(1200), sites)
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, kind.classes)
    )
    train, test = (
        ob.Dataset(data.x, kind.relabel(data.y), kind.classes) for data in (source.train, source.test)
    )
    federated = ob.federate(train, test, parts)
    return ob.TorchLearner(module, federated, ob.Training(lr=0.1, batch_size=20), metrics=kind.metrics)


@dataclass
class Federation:
    """A coordinator and its sites, which take `speeds` seconds a step."""

    algorithm: ob.Algorithm
    learner: ob.TorchLearner
    speeds: list[float]
    attackers: int
    attack: Callable[[Situation], Tensor] | None
    seed: int
    kind: Kind = KINDS["accuracy"]
    now: float = 0.0
    attacking: bool = False
    updates: int = 0
    refused: int = 0
    course: list[float] = field(default_factory=list)  # the reported metric of each version
    test: bool = True

    def __post_init__(self) -> None:
        """Start the server, and register the sites."""
        self.model = self.learner.initial(self.seed)
        rng = torch.Generator().manual_seed(self.seed)
        direction = torch.randn(self.model.layout.parameters, generator=rng)
        self.direction = direction / direction.norm()
        options = ServerOptions(clients=len(self.speeds), lease=1e12, task_timeout=None)
        experiment = Experiment(self.algorithm, self.learner, self.seed, ob.Until())
        prepared = PreparedRun(experiment, len(self.speeds), self.model, self.algorithm)
        self.server = Coordinator(prepared, options, RunInfo("run", {}))
        self.due: list[tuple[float, int, int]] = []
        self.tasks: dict[int, TaskAssignment] = {}
        self.sent: dict[int, int] = {}
        for site in range(len(self.speeds)):
            samples = self.learner.samples(site)
            self.server.receive(0.0, f"site-{site}", Register(samples, self.learner.steps_per_epoch(site)))
            self.settle()

    @property
    def version(self) -> int:
        """The server's version."""
        return self.server.server.version

    def run(self, until: Callable[[], bool], most: int = 20_000) -> None:
        """Go on until something is so, for so many events at most."""
        for _ in range(most):
            if until() or not self.step():
                return

    def step(self) -> bool:
        """The next thing that happens: an update, or a timer of the server."""
        at = self.server.next_due()
        if not self.due and at == float("inf"):
            return False
        if not self.due or at <= self.due[0][0]:
            self.now = max(self.now, at)
            self.server.tick(self.now)
            self.settle()
            return True
        self.now, site, task = heapq.heappop(self.due)
        assignment = self.tasks.get(site)
        if assignment is not None and assignment.task == task:
            del self.tasks[site]
            self.submit(site, assignment)
        return True

    def submit(self, site: int, assignment: TaskAssignment) -> None:
        """Train a task, or attack with it."""
        task = LocalTask(assignment.task, site, assignment.base, assignment.steps, self.seed)
        result = self.learner.train(assignment.model, task, self.algorithm.objective)
        delta = result.delta
        if site < self.attackers and self.attacking and self.attack is not None:
            model = self.server.tensors.model
            parameters = model.layout.parameters
            delta = self.attack(Situation(result, model.values, parameters, assignment.steps, self.direction))
            self.updates += 1
            self.sent[assignment.task] = site
        message = UpdateSubmission(
            assignment.task,
            assignment.steps,
            delta,
            result.integers,
            result.metrics,
            result.lr,
            result.shared,
        )
        self.server.receive(self.now, f"site-{site}", message)
        self.settle()

    def settle(self) -> None:
        """Deliver what the server says, and evaluate what it wants evaluated."""
        effects = self.server.take()
        while True:
            for name, message in effects.messages:
                self.hear(int(name.removeprefix("site-")), message)
            for evaluation in effects.evaluations:
                found = self.learner.evaluate(evaluation.model)
                self.course.append(found[self.kind.reported])
                if self.test:
                    measured = {name: found[name] for name in ("loss", *self.kind.measured)}
                    self.server.evaluated([(evaluation, measured)])
            effects = self.server.take()
            if not effects.messages and not effects.evaluations:
                return

    def hear(self, site: int, message: FromServer) -> None:
        """A message of the server to a site."""
        if isinstance(message, TaskAssignment):
            self.tasks[site] = message
            heapq.heappush(self.due, (self.now + self.speeds[site] * message.steps, site, message.task))
        elif isinstance(message, TaskCancel) and site in self.tasks and self.tasks[site].task == message.task:
            del self.tasks[site]
        elif isinstance(message, UpdateAck) and message.task in self.sent and not message.accepted:
            self.refused += 1
            if not self.server.registry.sites[f"site-{site}"].connected:  # sent away; it tries again
                self.server.receive(self.now + 30.0, f"site-{site}", Register(self.learner.samples(site), 1))

    def end_attack(self) -> None:
        """The attackers leave for good."""
        self.attacking = False
        for site in range(self.attackers):
            self.tasks.pop(site, None)
            self.server.receive(self.now, f"site-{site}", Leave())
        self.settle()


@cache
def honest_run(world: str, name: str, sites: int, attackers: int, seed: int) -> tuple[float, int | None]:
    """The metric of the honest sites without the others after 150 versions, and when they are near it."""
    speeds = [1.0 + 0.1 * k for k in range(sites - attackers)]
    made = ALGORITHMS[name](len(speeds))
    f = Federation(made, learner(world, sites, seed), speeds, 0, None, seed, KINDS[world])
    f.run(lambda: f.version >= 150)
    accuracy = float(np.mean(f.course[-10:]))
    return accuracy, first_near(f.course, accuracy)


def first_near(course: list[float], accuracy: float) -> int | None:
    """The first version whose accuracy is near another; None where there is none."""
    return next((k for k, a in enumerate(course) if a >= accuracy - BACK), None)


def one(
    world: str, name: str, sites: int, attackers: int, speed: float, attack: str, begins: str, seed: int,
    test: bool,
) -> dict[str, Any]:  # fmt: skip
    """One attacked federation as a row."""
    speeds = [1.0 / speed] * attackers + [1.0 + 0.1 * k for k in range(sites - attackers)]
    honest, from_scratch = honest_run(world, name, sites, attackers, seed)
    made, how = ALGORITHMS[name](sites), ATTACKS[attack]
    trained = learner(world, sites, seed)
    f = Federation(made, trained, speeds, attackers, how, seed, KINDS[world], test=test)
    if begins == "later":
        f.run(lambda: f.version >= LATER)
    f.attacking, begun = True, f.now
    f.run(lambda: f.now > begun + 60, most=4000)
    attacked = f.course[len(f.course) // 2 :]
    f.end_attack()
    ended, count = f.version, len(f.course)
    f.run(lambda: f.version >= ended + 100, most=4000)
    back = first_near(f.course[count:], honest)
    return {
        "algorithm": name,
        "sites": sites,
        "attackers": attackers,
        "speed": speed,
        "attack": attack,
        "begins": begins,
        "seed": seed,
        "updates": f.updates,
        "refused": f.refused,
        "skipped": f.server.driver.skipped,
        "rollbacks": f.server.driver.rollbacks,
        "honest": round(honest, 3),
        "from_scratch": "never" if from_scratch is None else from_scratch,
        "lowest": round(min(attacked, default=float("nan")), 3),
        "during": round(float(np.median(attacked)), 3) if attacked else float("nan"),
        "final": round(float(np.mean(f.course[-5:])), 3),
        "versions_until_back": "never" if back is None else back,
    }


def cases(world: str, seeds: int) -> Iterator[tuple[str, int, int, float, str, str, int]]:
    """All cases: algorithms, sites, attackers that are as fast as the others or faster, and moments."""
    for seed in range(seeds):
        own = world != "accuracy"
        for sites, attackers in ((3, 1),) if own else ((3, 1), (5, 1), (5, 2)):
            for name in ("fedasync", "fedbuff", "fedavg") if own else ALGORITHMS:
                for attack in SOME_ATTACKS if own else ALL_ATTACKS:
                    for begins in ("first", "later"):
                        yield name, sites, attackers, 20.0, attack, begins, seed


def table(rows: list[dict[str, str]]) -> str:
    """Versions until the metric is back, as Markdown: the most of all federations, "first / later"."""

    def most(attack: str, name: str, begins: str) -> str:
        keys = ("attack", "algorithm", "begins")
        of = [row for row in rows if tuple(row[key] for key in keys) == (attack, name, begins)]
        back = [row["versions_until_back"] for row in of]
        return "–" if not back else "never" if "never" in back else str(max(map(int, back)))

    lines = ["| attack | " + " | ".join(ALGORITHMS) + " |", "|---" * (1 + len(ALGORITHMS)) + "|"]
    for attack in (name for name in ATTACKS if any(row["attack"] == name for row in rows)):
        cells = (f"{most(attack, name, 'first')} / {most(attack, name, 'later')}" for name in ALGORITHMS)
        shown = attack.replace("|", "\\|")
        lines.append(f"| `{shown}` | " + " | ".join(cells) + " |")
    scratch = [
        max((int(row["from_scratch"]) for row in rows if row["algorithm"] == name), default=0)
        for name in ALGORITHMS
    ]
    lines.append("| *from the initial model, without an attack* | " + " | ".join(map(str, scratch)) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the cases that --out has not yet."""
    parser = argparse.ArgumentParser(description="Attacks on the guard and the rollback.")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--world", choices=KINDS, default="accuracy")
    parser.add_argument("--without-test-data", action="store_true", help="no evaluation tells of a collapse")
    parser.add_argument("--only", default="", help="part of an attack's or an algorithm's name")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--table", action="store_true", help="run nothing, and print a table of what is there"
    )
    given = parser.parse_args()
    if given.table:
        with given.out.open() as file:
            print(table(list(csv.DictReader(file))))
        return
    torch.set_num_threads(1)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    done = set()
    keys = ("algorithm", "sites", "attackers", "speed", "attack", "begins", "seed")
    if given.out.exists():
        with given.out.open() as file:
            done = {tuple(row[key] for key in keys) for row in csv.DictReader(file)}
    with given.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if not done:
            writer.writeheader()
        for case in cases(given.world, given.seeds):
            if tuple(map(str, case)) not in done and (given.only in case[0] or given.only in case[4]):
                writer.writerow(one(given.world, *case, test=not given.without_test_data))
                file.flush()


if __name__ == "__main__":
    main()
