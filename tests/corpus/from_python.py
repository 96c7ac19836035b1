"""Runs that are started from Python, without a recipe: their arguments, given again to resume them."""

from collections.abc import Callable
from typing import Any

import offbeat as ob
from tests.corpus.own import hospitals, linear

Arguments = dict[str, Any]
CELLS = """
import numpy as np
import offbeat as ob

sizes = [12, 20, 28]
rng = np.random.default_rng(3)
data = [rng.standard_normal((size, 3)).astype("float32") for size in sizes]
truth = np.array([1.0, -2.0, 0.5], "float32")

def train(task):
    w = task.arrays()["w"].astype("float64")
    x, losses = data[task.client].astype("float64"), []
    for step in task.steps():
        error = x @ (w - truth)
        losses.append(float((error**2).mean()))
        w = w - 0.2 * x.T @ error / len(x)
    task.submit({"w": w.astype("float32")}, metrics={"loss": float(np.mean(losses))})

def evaluate(model):
    return {"distance": float(np.abs(model.state_dict()["w"].numpy() - truth).sum())}

learner = ob.LoopLearner(
    train, {"w": np.zeros(3, "float32")}, sizes, batch_size=8, evaluate=evaluate,
    higher_is_better={"distance": False},
)
"""
"""Cells of a notebook, whose functions belong to no module that can be imported."""


def with_a_module() -> Arguments:
    """What `offbeat.simulate` and `offbeat.resume` are given."""
    return {
        "algorithm": ob.fedbuff(2, steps=2),
        "world": ob.World([0.5, 1.0, 1.5], jitter=0.1),
        "learner": ob.TorchLearner(linear, hospitals([16, 24, 32]), ob.Training(lr=0.1, batch_size=8)),
        "until": ob.Until(tasks=24),
        "evaluate": ob.Every(versions=2),
    }


def in_a_notebook() -> Arguments:
    """The same of a notebook with a loop of its own."""
    cells: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELLS, "<cell>", "exec"), cells)
    return {
        "algorithm": ob.fedasync(steps=3),
        "world": ob.World([0.5, 1.0, 1.5], jitter=0.1),
        "learner": cells["learner"],
        "until": ob.Until(tasks=24),
        "evaluate": ob.Every(versions=3),
    }


FROM_PYTHON: dict[str, Callable[[], Arguments]] = {"from-python": with_a_module, "notebook": in_a_notebook}
