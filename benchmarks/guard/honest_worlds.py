"""False alarms of the guard and of the rule of collapse in random honest worlds.

    python benchmarks/guard/honest_worlds.py --worlds 2000 --out runs/honest.csv

Each world is a training without attackers, drawn from the laws below: any algorithm that is built in, 1 to 20
clients of very unequal numbers of samples (1 to 500; with BatchNorm at least 8, in batches of no fewer),
features of a scale and labels by one of four partitions, one of four models, momentum 0 or 0.9 (0 with
SCAFFOLD), learning rates of 0.003 to 0.5 times 1 - momentum, numbers of steps and speeds of a ratio of up to
400. Every version is evaluated.

Counted are updates that the guard refuses, versions that it skips, rollbacks that it demands, and evaluations
at which the rule of collapse finds that the model has collapsed. Each of them is a false alarm.

An update whose own model, where its client's training has ended, has a loss of more than twice the first one
is of a client whose training diverges: where the guard refuses it, that is counted as `diverged`, and is no
false alarm. A training that does not work without the guard is counted apart, by the rule of `metric_worlds`:
the accuracy loses half of its gain, or the loss never falls, or one is not finite; or all training data are
of one class, so that there is nothing to learn.
What is in --out already is kept, so an interrupted call goes on. `--first` begins with another world: laws
and rules were tuned on worlds below 70,000 and from 1,000,000 on, and judged on those from 70,000 on.

With no false alarm in n worlds, the share of worlds with one is below 3 / n, with 95 % confidence.
"""

import argparse
import csv
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from metric_worlds import trains
from torch import nn

import offbeat as ob
from offbeat.core.learner import NO_INPUTS, LocalResult, LocalTask, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.net.server.collapse import CollapseDetector, parameter_norm

FIELDS = (
    "world", "algorithm", "clients", "model", "partition", "lr", "updates", "versions", "refused", "diverged",
    "skipped", "rolled_back", "collapsed", "works", "first_loss", "last_loss", "reason",
)  # fmt: skip
CLASSES, FEATURES, NORM = 5, 12, "parameter_norm"
FEWEST = 10
"""Evaluations of a run of which one can say whether it trains."""
SPREAD = {"kind": "random"}


# ---- the laws ----


def logistic(zeros: bool) -> nn.Module:
    """Logistic regression, from zeros or from PyTorch's initial weights."""
    net = nn.Linear(FEATURES, CLASSES)
    if zeros:
        nn.init.zeros_(net.weight)
        nn.init.zeros_(net.bias)
    return net


MODELS: dict[str, Callable[[], nn.Module]] = {
    "zeros": lambda: logistic(True),
    "logistic": lambda: logistic(False),
    "mlp": lambda: nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES)),
    "batchnorm": lambda: nn.Sequential(
        nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES)
    ),
}


def algorithm(name: str, rng: np.random.Generator, clients: int) -> ob.Algorithm:
    """An algorithm with options that fit a number of clients."""
    steps = int(rng.integers(1, 13))
    some = int(rng.integers(1, clients + 1))
    signature = ob.ALGORITHMS[name].signature.parameters
    options: dict[str, Any] = {"steps": steps} if "steps" in signature else {}
    if "epochs" in signature and "steps" not in signature:
        options["epochs"] = int(rng.integers(1, 4))
    if "clients_per_round" in signature:
        options["clients_per_round"] = some
    if "concurrency" in signature:
        options["concurrency"] = some
    if "size" in signature:
        options["size"] = int(rng.integers(1, 6))
    if name == "fedcompass":
        options = {
            "q_min": steps,
            "q_max": steps * int(rng.integers(1, 9)),
            "momentum": float(rng.choice([0, 0.5])),
        }
    if name == "wireless":
        options = {"steps": steps, "scheduled": some, "period": float(rng.choice([2.0, 10.0]))}
    if name in ("fedadagrad", "fedadam", "fedyogi"):
        options["server_lr"] = 0.02
    return ob.ALGORITHMS[name](**options)


def samples(rng: np.random.Generator, clients: int) -> list[int]:
    """Numbers of samples: equal, log-uniform, or one client with one sample or with most of them."""
    kind = rng.choice(["equal", "log-uniform", "one has one", "one has most"])
    if kind == "equal":
        return [40] * clients
    if kind == "log-uniform":
        return [int(n) for n in np.exp(rng.uniform(0, np.log(500), clients)).round()]
    few, many = (1, 500) if kind == "one has one" else (500, 8)
    return [few] + [many] * (clients - 1)


def labels(rng: np.random.Generator, kind: str, client: int, n: int) -> np.ndarray:
    """Labels of a client's samples: of all classes, of one, of two, or by a Dirichlet distribution."""
    if kind == "one class":
        return np.full(n, client % CLASSES)
    if kind == "two classes":
        return rng.choice([client % CLASSES, (client + 1) % CLASSES], n)
    p = np.full(CLASSES, 1 / CLASSES) if kind == "iid" else rng.dirichlet(np.full(CLASSES, 0.3))
    return rng.choice(CLASSES, n, p=p)


def make(number: int) -> tuple[dict[str, Any], "Learner", Callable[[Any], ob.Run]]:
    """A world: what it is, its learner, and a function that runs it with a guard."""
    rng = np.random.default_rng([20261125, number])
    clients = int(rng.choice([1, 2, 3, 4, 5, 8, 12, 20]))
    name = str(rng.choice(sorted(ob.ALGORITHMS)))
    model = str(rng.choice(list(MODELS)))
    kind = str(rng.choice(["iid", "one class", "two classes", "dirichlet"]))
    momentum = float(rng.choice([0.0, 0.0, 0.9]))
    if name == "scaffold":  # whose control variates are gradients only where plain SGD trains
        momentum = 0.0
    lr = float(np.exp(rng.uniform(np.log(0.003), np.log(0.5)))) * (1 - momentum)
    scale, spread = float(rng.choice([0.3, 1.0, 3.0])), float(rng.choice([0.5, 1.0, 2.0]))
    centres = rng.normal(0, 1, (CLASSES, FEATURES)) * scale

    def draw(which: np.ndarray) -> ob.Dataset:
        x = centres[which] + rng.normal(0, spread * scale, (len(which), FEATURES))
        return ob.Dataset(torch.tensor(x, dtype=torch.float32), torch.tensor(which), CLASSES)

    sizes = samples(rng, clients)
    batch_size = int(rng.choice([2, 8, 32]))
    normalized = model == "batchnorm"  # statistics of two samples may be hundreds of times as large as usual
    if normalized:
        batch_size, sizes = max(8, batch_size), [max(8, n) for n in sizes]
    parts = [draw(labels(rng, kind, c, n)) for c, n in enumerate(sizes)]
    test = draw(rng.integers(0, CLASSES, 200))
    data = ob.federate(parts, test)
    training = ob.Training(lr=lr, batch_size=batch_size, momentum=momentum, drop_last=normalized)
    ratio = float(rng.choice([1.01, 5, 50, 400]))
    world = ob.World(
        seconds_per_step=[float(s) for s in np.exp(rng.uniform(0, np.log(ratio), clients))],
        jitter=float(rng.choice([0.0, 0.3])),
        channel=ob.Channel(3000),
    )
    made = algorithm(name, rng, clients)
    torch.manual_seed(number)
    until = ob.Until(tasks=int(rng.choice([60, 200])))
    learner = Learner(MODELS[model], data, training)
    about = {
        "world": number,
        "algorithm": name,
        "clients": clients,
        "model": model,
        "partition": kind,
        "lr": lr,
    }
    return (
        about,
        learner,
        lambda guard: ob.simulate(
            made, world, learner, seed=number, until=until, evaluate=ob.Every(versions=1), guard=guard
        ),
    )


class Learner(ob.TorchLearner):
    """A learner that measures the norm of the parameters too, and keeps the clients' models by task."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.models: dict[int, Model] = {}

    def train(
        self, base: Model, task: LocalTask, objective: Objective, inputs: TaskInputs = NO_INPUTS
    ) -> LocalResult:
        """Train a task, and keep the client's model at its end."""
        result = super().train(base, task, objective, inputs)
        self.models[task.task] = Model(base.layout, base.values + result.delta, base.integers)
        return result

    def evaluate(self, model: Model) -> dict[str, float]:
        """Evaluate a model."""
        return {**super().evaluate(model), NORM: parameter_norm(model)}


# ---- the count ----


def count(number: int) -> dict[str, Any]:
    """Run one world, and count its false alarms."""
    about, learner, run_with = make(number)
    classes = len(learner.data.train.y.unique())
    try:
        run = run_with(ob.Guard())
    except ob.RunError as error:  # a training that diverges; ended by the guard if it works without it
        works_without = works(without_guard(run_with), classes)
        ended = {"updates": 0, "versions": 0, "refused": int(works_without), "diverged": 0}
        ended |= {"skipped": 0, "rolled_back": 0}
        return {**about, **ended, "collapsed": 0, "works": works_without, "reason": str(error)}
    rejected = [row for row in run.entries("lost") if str(row["reason"]).startswith("rejected: ")]
    most = 2 * run.metrics[0]["loss"]
    refused = [row for row in rejected if learner.evaluate(learner.models[row["task"]])["loss"] <= most]
    skipped, back = run.entries("skipped"), run.entries("rolled_back")
    losses, found = [row["loss"] for row in run.metrics], collapses(run.metrics)
    unguarded = without_guard(run_with) if refused or skipped or back else run.metrics
    reasons = [str(row["reason"]) for row in (*refused, *skipped, *back)] + found
    return {
        **about, "updates": run.summary.aggregated, "versions": run.summary.versions,
        "refused": len(refused), "diverged": len(rejected) - len(refused),
        "skipped": len(skipped), "rolled_back": len(back), "collapsed": len(found),
        "works": works(unguarded, classes),
        "first_loss": losses[0], "last_loss": losses[-1], "reason": reasons[0] if reasons else "",
    }  # fmt: skip


def collapses(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """The collapses that a server would find in evaluations."""
    detector, initial, found = CollapseDetector(), metrics[0][NORM], []
    for row in metrics:
        kept = {name: row[name] for name in ("loss", "accuracy")}
        norm = row[NORM] / initial if initial else inf
        if (reason := detector.judge({**kept, **detector.to_record(kept, norm)})) is not None:
            found.append(reason)
    return found


def without_guard(run_with: Callable[[Any], ob.Run]) -> Sequence[Mapping[str, Any]]:
    """The evaluations of the same world without a guard; none where the run fails."""
    try:
        return run_with(None).metrics
    except ob.RunError:
        return []


def works(metrics: Sequence[Mapping[str, Any]], classes: int) -> bool:
    """Whether a training works; `classes` is the number of classes in the training data."""
    if classes < 2 or len(metrics) < FEWEST:
        return False
    course = {name: np.array([row[name] for row in metrics], dtype=float) for name in ("loss", "accuracy")}
    return trains(("accuracy",), course) == "trains"


def main() -> None:
    """Run the worlds that --out has not yet, and print the counts."""
    parser = argparse.ArgumentParser(description="False alarms of the guard in random honest worlds.")
    parser.add_argument("--worlds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    done = set()
    if given.out.exists():
        with given.out.open() as file:
            done = {int(row["world"]) for row in csv.DictReader(file)}
    with given.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if not done:
            writer.writeheader()
        for number in range(given.first, given.first + given.worlds):
            if number not in done:
                writer.writerow(count(number))
                file.flush()
    with given.out.open() as file:
        rows = list(csv.DictReader(file))
    honest = [row for row in rows if row["works"] == "True"]
    others = [row for row in rows if row["works"] != "True"]
    print(f"{len(rows)} worlds: {len(honest)} whose training works, {len(others)} whose does not")
    for what in ("refused", "diverged", "skipped", "rolled_back", "collapsed"):
        first, second = (sum(int(row[what]) > 0 for row in some) for some in (honest, others))
        print(f"{what}: in {first} of {len(honest)} worlds, and in {second} of the {len(others)} others")
    updates, versions = (sum(int(row[what]) for row in honest) for what in ("updates", "versions"))
    print(f"{updates} updates, {versions} versions; {len({row['algorithm'] for row in honest})} algorithms")


if __name__ == "__main__":
    main()
