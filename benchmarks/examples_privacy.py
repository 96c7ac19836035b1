"""Accuracy against ε of each example: DP-SGD at four clients, on digits and on heart disease, as a table.

    python benchmarks/examples_privacy.py
    python benchmarks/examples_privacy.py --seeds 1 --tasks 40 --data digits

Logistic regression by FedBuff with buffers of two, clients whose speeds are up to 8 times apart. Digits in
four shares of skewed labels and sizes; heart disease of four hospitals. The number is the mean over the
last five evaluations, with its standard deviation over the seeds; ε is that of the client that has spent
most. Batches and noise follow from the seed: these models are not private.
"""

from collections import Counter
from statistics import mean, pstdev
from typing import Literal

from harness import Rows, main

from offbeat.local.examples_privacy import examples_epsilon, sampling_rate
from offbeat.recipes.build import make_learner, run_recipe
from offbeat.recipes.load import load_recipe

DELTA, STEPS = 1e-4, 10
NOISES = (None, 0.0, 0.5, 1.0, 2.0, 4.0)  # without privacy; clipped only
DATA = {
    "digits": (
        "accuracy",
        ["data.partition={kind: dual_dirichlet}", "training={lr: 0.5, batch_size: 32}"],
    ),
    "heart_disease": ("balanced_accuracy", ["training={lr: 0.2, batch_size: 16}"]),
}


def figures(data: str, noise: float | None, seed: int, tasks: int) -> tuple[float, float]:
    """The metric at the end of one run, and the largest ε of a client."""
    metric, changes = DATA[data]
    changes = [
        *changes, "clients=4", "model={name: logistic}", f"metrics=[{metric}]", f"until={{tasks: {tasks}}}",
        f"evaluate={{versions: {max(1, tasks // 40)}}}",
        "world={seconds_per_step: [1, 2, 4, 8], jitter: 0.05}",
        f"algorithm={{name: fedbuff, steps: {STEPS}, size: 2}}",
    ]  # fmt: skip
    if noise is not None:
        changes.append(f"examples={{noise: {noise or 1e-9}, clip: 1.0, delta: {DELTA}}}")
    recipe = load_recipe(data, sets=changes, seed=seed)
    run = run_recipe(recipe.with_seed(seed), out=None)
    done = Counter(row["client"] for row in run.entries("arrived"))
    learner, epsilon = make_learner(recipe.with_seed(seed)), 0.0
    for client, count in done.items() if noise else ():
        rate = sampling_rate(learner.batch_size, learner.samples(client))
        epsilon = max(epsilon, examples_epsilon([(noise or 0.0, rate, count * STEPS)], DELTA))
    return mean(row[metric] for row in run.metrics[-5:]), epsilon


def examples_privacy(
    seeds: int = 3, tasks: int = 120, data: tuple[Literal["digits", "heart_disease"], ...] = tuple(DATA)
) -> Rows:
    for name in data:
        for noise in NOISES:
            found = [figures(name, noise, seed, tasks) for seed in range(seeds)]
            values = [value for value, _ in found]
            title = "no privacy" if noise is None else "clipped, no noise" if not noise else f"{noise:g}"
            yield {
                f"{tasks} tasks of {STEPS} steps": f"{name}, {DATA[name][0]}",
                "noise": title,
                "result": f"{mean(values):.3f} ± {pstdev(values):.3f}",
                f"ε (δ = {DELTA:g})": f"{max(e for _, e in found):.1f}" if noise else None,
            }


if __name__ == "__main__":
    main(examples_privacy)
