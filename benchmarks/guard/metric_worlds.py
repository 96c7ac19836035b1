"""False alarms of the rule of collapse in random honest worlds that are judged by their own metric.

    python benchmarks/guard/metric_worlds.py --batches 100 --out runs/metric_worlds
    python benchmarks/guard/metric_worlds.py --batches 0 --out runs/metric_worlds --show

Each world is a federated training without attackers, of a small network on two, three or five sites, for
2,000 versions. A site trains a few steps of SGD from the version that it was sent last; the server adds each
update at once (its weight falls with staleness), or the mean of two, or waits for all sites. The kind of a
world decides what is learnt and which metrics are recorded beside the loss: an AUROC of one's own;
unbalanced classes (2 to 20 % positives) with AUROC, accuracy, F1, sensitivity or specificity; a regression
with MAE, RMSE or R²; a segmentation with Dice; a language model with the perplexity; several classes with
the accuracy; or nothing. Sites have 8 to 200 samples, with noise in their labels or targets and with features
that differ by site, so most worlds overfit. Every version is evaluated.

Worlds of one kind, network and schedule are trained together, 32 at a time; data, learning rate and initial
weights are each world's own. A batch is a file of --out, and what is there is kept, so an interrupted call
goes on. The second command trains nothing: the present rule judges the recorded evaluations, and --show
prints each collapse that it finds.

Whether a world trains is judged by the metric by which its run is compared, and, where more are recorded, by
most of them: the medians of the second half and of the last tenth keep half of the gain, from the first value
to the best median of five. A collapse that the rule finds in such a world is a false alarm. Counted apart are
worlds that lose half of the gain, worlds that end no better than they began, and worlds whose loss never
falls: its lowest median of five is not below the first one.

With no false alarm in n worlds, the share of worlds with one is below 3 / n, with 95 % confidence.
"""

import argparse
import json
from collections import Counter
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from offbeat.net.server.collapse import CollapseDetector

Array = Any
WORLDS, VERSIONS, TEST, NORM = 32, 2000, 200, "norm"
LOWER = frozenset({"loss", "mae", "rmse", "perplexity"})
# What a world of a kind records: one of these; the first of each is the metric by which its run is compared.
RECORDED: dict[str, tuple[tuple[str, ...], ...]] = {
    "auroc": (("own_auroc",), ("auroc",)),
    "imbalanced": (
        ("auroc",), ("accuracy",), ("balanced_accuracy",), ("f1",), ("auroc", "sensitivity", "specificity"),
        ("specificity", "auroc"), ("accuracy", "auroc", "f1"),
    ),
    "regression": (("mae",), ("rmse",), ("r2",), ("rmse", "mae", "r2")),
    "dice": (("dice",),),
    "perplexity": (("perplexity",), ("accuracy", "perplexity")),
    "classes": (("accuracy",),),
    "loss alone": ((),),
}  # fmt: skip
SHARES = (0.2, 0.25, 0.18, 0.1, 0.12, 0.08, 0.07)


# ---- metrics of W worlds: scores and targets are [W, N, outputs] ----


def auroc(scores: Array, target: Array) -> Array:
    """Area under the ROC curve."""
    order = np.argsort(scores, 1, kind="stable")
    positive = np.take_along_axis(target, order, 1) > 0.5
    n = positive.sum(1)
    ranks = (positive * np.arange(1, scores.shape[1] + 1)).sum(1)
    return (ranks - n * (n + 1) / 2) / (n * (scores.shape[1] - n))


def binary(scores: Array, target: Array) -> dict[str, Array]:
    """Metrics of one logit for each sample, [W, N]."""
    found, true = scores > 0, target > 0.5
    hit, all_found, all_true, n = (found & true).sum(1), found.sum(1), true.sum(1), scores.shape[1]
    area = auroc(scores, target)
    sensitivity = hit / all_true
    specificity = (n - all_found - all_true + hit) / (n - all_true)
    return {
        "auroc": area, "own_auroc": area, "accuracy": (n - all_found - all_true + 2 * hit) / n,
        "sensitivity": sensitivity, "specificity": specificity,
        "balanced_accuracy": (sensitivity + specificity) / 2, "f1": 2 * hit / (all_found + all_true),
    }  # fmt: skip


def evaluate(head: str, scores: Array, y: Array, measured: bool) -> dict[str, Array]:
    """The loss and metrics, [W] each."""
    if head == "softmax":
        top = scores.max(2, keepdims=True)
        loss = (((np.log(np.exp(scores - top).sum(2, keepdims=True)) + top) - scores) * y).sum(2).mean(1)
        right = (scores.argmax(2) == y.argmax(2)).mean(1)
        return {"loss": loss, "perplexity": np.exp(loss), "accuracy": right}
    if head == "mean":
        squared = ((scores - y) ** 2).mean((1, 2))
        variance = ((y - y.mean(1, keepdims=True)) ** 2).mean((1, 2))
        mae = np.abs(scores - y).mean((1, 2))
        return {"loss": squared / 2, "rmse": squared**0.5, "mae": mae, "r2": 1 - squared / variance}
    loss = (np.logaddexp(0, scores) - scores * y).mean((1, 2))
    if y.shape[2] == 1:
        return {"loss": loss, **(binary(scores[..., 0], y[..., 0]) if measured else {})}
    found, true = scores > 0, y > 0.5
    overlap, both = 2 * (found & true).sum(2), found.sum(2) + true.sum(2)
    return {"loss": loss, "dice": np.where(both > 0, overlap / np.maximum(both, 1), 1.0).mean(1)}


# ---- the laws ----


def log_uniform(rng: np.random.Generator, low: float, high: float, size: Any = None) -> Any:
    """Numbers between two, uniform in their logarithms."""
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def draw(
    rng: np.random.Generator, kind: str, sizes: Array, features: int, width: int, most: int
) -> tuple[Array, Array, Array, Array]:
    """The data of one world: inputs and targets of its sites, [S, most, ...], and of its test set."""
    noise, signal = float(rng.choice([0.0, 0.1, 0.25, 0.4])), float(log_uniform(rng, 0.5, 4.0))
    skew = float(rng.choice([0.0, 0.0, 1.0]))
    rare = float(log_uniform(rng, 0.02, 0.2)) if kind == "imbalanced" else 0.5
    truth = rng.normal(0, signal * features**-0.5, (features, width))
    mixed = rng.normal(0, features**-0.5, (features, features))

    def score(x: Array) -> Array:
        return (x + 0.5 * np.tanh(x @ mixed)) @ truth

    threshold = np.quantile(score(rng.normal(0, 1, (2000, features))), 1 - rare, axis=0)

    def some(n: int, shift: Array, noisy: bool) -> tuple[Array, Array]:
        x = rng.normal(0, 1, (n, features)) + shift
        s = score(x)
        if kind == "regression":
            return x, s + (noise * signal * 2 * rng.normal(0, 1, s.shape) if noisy else 0.0)
        if kind in ("perplexity", "classes"):
            wrong = rng.random(n) < (noise if noisy else noise / 2)
            label = np.where(wrong, rng.integers(0, width, n), (3 * s + rng.gumbel(0, 1, s.shape)).argmax(1))
            return x, np.eye(width)[label]
        y = s + 0.3 * signal * rng.normal(0, 1, s.shape) > threshold
        if noisy and kind != "imbalanced":
            y = y ^ (rng.random(y.shape) < noise / 2)
        if width == 1 and not y.any():
            y[0] = True
        return x, y.astype(float)

    x, y = np.zeros((len(sizes), most, features)), np.zeros((len(sizes), most, width))
    for site, n in enumerate(sizes):
        x[site, :n], y[site, :n] = some(n, skew * rng.normal(0, 1, features), True)
    return x, y, *some(TEST, np.zeros(features), False)


class Networks:
    """W networks with at most one hidden layer: weights are [W, parameters].

    Args:
        sizes: Widths of the layers.
        head: "softmax", "sigmoid", or "mean", which has the squared error.
    """

    def __init__(self, sizes: list[int], head: str) -> None:
        self.shapes, self.head = list(pairwise(sizes)), head

    def initial(self, rng: np.random.Generator, scale: Array) -> Array:
        """Random weights, of a scale for each world, and biases of 0."""
        layers = []
        for a, b in self.shapes:
            layers += [rng.normal(0, a**-0.5, (WORLDS, a * b)) * scale[:, None], np.zeros((WORLDS, b))]
        return np.concatenate(layers, 1).astype(np.float32)

    def layers(self, flat: Array) -> list[tuple[Array, Array]]:
        """Views of weights and biases, [W, a, b] and [W, 1, b]."""
        found, at = [], 0
        for a, b in self.shapes:
            weights = flat[:, at : at + a * b].reshape(-1, a, b)
            found.append((weights, flat[:, None, at + a * b : at + a * b + b]))
            at += a * b + b
        return found

    def forward(self, layers: list[tuple[Array, Array]], x: Array) -> tuple[Array, Array]:
        """The inputs of the last layer, and the scores."""
        h = np.tanh(x @ layers[0][0] + layers[0][1]) if len(layers) > 1 else x
        return h, h @ layers[-1][0] + layers[-1][1]

    def step(self, flat: Array, x: Array, y: Array, lr: Array) -> None:
        """One step of SGD, in place."""
        layers = self.layers(flat)
        h, scores = self.forward(layers, x)
        if self.head == "softmax":
            e = np.exp(scores - scores.max(2, keepdims=True))
            scores = e / e.sum(2, keepdims=True)
        elif self.head == "sigmoid":
            scores = 1 / (1 + np.exp(-np.clip(scores, -60, 60)))
        error = (scores - y) * (lr / x.shape[1])
        back = (error @ layers[-1][0].transpose(0, 2, 1)) * (1 - h * h) if len(layers) > 1 else None
        for (weights, bias), inputs, gradient in zip(layers[::-1], (h, x), (error, back), strict=False):
            weights -= inputs.transpose(0, 2, 1) @ gradient
            bias -= gradient.sum(1, keepdims=True)


def make(number: int) -> dict[str, Any]:
    """Train a batch of worlds: what they are, and their evaluations, [W, versions] by name."""
    rng = np.random.default_rng([20270301, number])
    kind = str(rng.choice(list(RECORDED), p=SHARES))
    recorded = [RECORDED[kind][int(k)] for k in rng.integers(len(RECORDED[kind]), size=WORLDS)]
    sites, features = int(rng.choice([2, 3, 3, 5])), int(rng.integers(4, 40))
    width = {"perplexity": int(rng.integers(5, 20)), "classes": int(rng.integers(3, 11)), "dice": 12}
    head = {"regression": "mean", "perplexity": "softmax", "classes": "softmax"}.get(kind, "sigmoid")
    hidden, steps, batch = (int(rng.choice(some)) for some in ([0, 8, 16], [1, 2, 3, 4], [4, 8, 16]))
    together = int(rng.choice([1, 1, 2, sites]))  # updates of an aggregation; all sites wait for each other
    sizes = log_uniform(rng, 8, float(rng.choice([20, 60, 200])), (WORLDS, sites)).round().astype(int)
    drawn = [draw(rng, kind, n, features, width.get(kind, 1), int(sizes.max())) for n in sizes]
    x, y, test_x, test_y = (np.stack(arrays).astype(np.float32) for arrays in zip(*drawn, strict=True))
    networks = Networks([features, *([hidden] if hidden else []), y.shape[-1]], head)
    model = networks.initial(rng, rng.choice([0.3, 1.0, 2.0], WORLDS))
    lr = log_uniform(rng, 0.02, 1.0, (WORLDS, 1, 1)).astype(np.float32) * {"mean": 0.2}.get(head, 1.0)
    speeds = log_uniform(rng, 1, float(rng.choice([1.01, 3, 20])), (WORLDS, sites))
    alpha = rng.choice([0.3, 0.6, 1.0], (WORLDS, 1)).astype(np.float32)
    bases, based = np.repeat(model[:, None], sites, 1), np.zeros((WORLDS, sites))
    every, due, held = np.arange(WORLDS), speeds.copy(), np.zeros_like(model)
    names = sorted({name for some in recorded for name in some})
    courses = {name: np.zeros((WORLDS, VERSIONS), np.float32) for name in ("loss", *names, NORM)}
    version = ticks = 0
    while True:
        if ticks % together == 0:
            _, scores = networks.forward(networks.layers(model), test_x)
            found = evaluate(head, scores, test_y, bool(names)) | {NORM: np.linalg.norm(model, axis=1)}
            for name, course in courses.items():
                course[:, version] = found[name]
            version += 1
            if version == VERSIONS:
                break
        # The sites whose tasks end next, one in each world; where all wait, one after another.
        site = np.full(WORLDS, ticks % sites) if together == sites else due.argmin(1)
        flat = bases[every, site].copy()
        for _ in range(steps):
            chosen = (rng.random((WORLDS, batch)) * sizes[every, site][:, None]).astype(int)
            at = every[:, None], site[:, None], chosen
            networks.step(flat, x[at], y[at], lr)
        stale = (version - 1 - based[every, site] + 1.0)[:, None] ** -0.5 if together == 1 else 1 / together
        held += (flat - bases[every, site]) * (alpha * stale if together == 1 else stale)
        ticks += 1
        if ticks % together == 0:
            model, held = (model + held).astype(np.float32), np.zeros_like(model)
        if together == sites:
            bases, based = np.repeat(model[:, None], sites, 1), based
        else:
            bases[every, site], based[every, site] = model, version
            due[every, site] += speeds[every, site] * rng.uniform(0.8, 1.2, WORLDS)
    about = {"kind": kind, "sites": sites, "hidden": hidden, "steps": steps, "together": together}
    return {"about": about, "recorded": recorded, "lr": lr[:, 0, 0], "courses": courses}


# ---- the count ----


def trains(recorded: tuple[str, ...], course: dict[str, Array]) -> str:
    """How a world trains, by the metric by which its run is compared, and most of the others."""
    if not all(np.isfinite(course[name]).all() for name in ("loss", *recorded)):
        return "does not train"
    kept = [share_kept(name, course[name]) for name in recorded or ("loss",)]
    if kept[0] <= 0:
        return "does not train"
    if kept[0] <= 0.5 or 2 * sum(share > 0.5 for share in kept) <= len(kept):
        return "loses half"
    falls = np.median(sliding_window_view(course["loss"], 5), 1).min() < course["loss"][0]
    return "trains" if falls else "loss never falls"


def share_kept(name: str, values: Array) -> float:
    """The share of a metric's gain that the medians of its second half and of its last tenth keep."""
    values = values * (-1.0 if name in LOWER else 1.0)
    first, best = values[0], np.median(sliding_window_view(values, 5), 1).max()
    end = min(np.median(values[len(values) // 2 :]), np.median(values[-len(values) // 10 :]))
    return float((end - first) / (best - first)) if best > first else 0.0


def judged(recorded: tuple[str, ...], course: dict[str, Array]) -> tuple[list[tuple[int, str]], bool]:
    """The collapses that a server would find, each with its version, and whether it would warn."""
    detector = CollapseDetector(None, {name: name not in LOWER for name in recorded})
    found, warned, initial, names = [], False, float(course[NORM][0]), ("loss", *recorded)
    columns = zip(*(course[name].tolist() for name in (*names, NORM)), strict=True)
    for version, (*values, norm) in enumerate(columns):
        metrics = dict(zip(names, values, strict=True))
        extra = detector.to_record(metrics, norm / initial if initial else inf)
        if (reason := detector.judge({**metrics, **extra})) is not None:
            found.append((version, reason))
        warned = warned or detector.warning is not None
    return found, warned


def save(path: Path, number: int) -> None:
    """Train a batch and write it."""
    with np.errstate(all="ignore"):
        made = make(number)
    told = json.dumps({**made["about"], "recorded": made["recorded"]})
    np.savez_compressed(path.with_suffix(".part.npz"), told=np.array(told), **made["courses"])
    path.with_suffix(".part.npz").rename(path)


def report(directory: Path, *, show: bool) -> None:
    """Judge all batches of a directory, and print the counts by kind of world."""
    counts: dict[str, Counter[str]] = {}
    for path in sorted(directory.glob("*[0-9].npz")):
        with np.load(path) as file:
            about, courses = json.loads(str(file["told"])), {n: file[n] for n in file.files if n != "told"}
        for w, recorded in enumerate(map(tuple, about.pop("recorded"))):
            course = {name: values[w] for name, values in courses.items()}
            which, (found, warned) = trains(recorded, course), judged(recorded, course)
            counts.setdefault(about["kind"], Counter()).update(
                {which: 1, f"{which}: alarm": bool(found), f"{which}: warning": warned}
            )
            if found and show and which != "does not train":
                print(f"{path.stem}/{w} {about} {recorded} {which}: {found[0]}, {len(found)} in all")
    for kind, told in sorted(counts.items()):
        print(f"{kind}: {dict(told)}")
    print(f"all: {dict(sum(counts.values(), Counter()))}")


def main() -> None:
    """Train the batches that --out has not yet, and judge all that it has."""
    parser = argparse.ArgumentParser(description="False alarms of the rule of collapse, by metrics.")
    parser.add_argument("--batches", type=int, default=80)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--show", action="store_true", help="print each false alarm")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for number in range(given.first, given.first + given.batches):
        if not (path := given.out / f"{number:06}.npz").exists():
            save(path, number)
    report(given.out, show=given.show)


if __name__ == "__main__":
    main()
