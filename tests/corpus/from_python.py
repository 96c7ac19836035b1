"""A run that is started from Python, without a recipe: its arguments, given again to resume it."""

from typing import Any

import offbeat as ob
from tests.corpus.own import hospitals, linear


def arguments() -> dict[str, Any]:
    """What `offbeat.simulate` and `offbeat.resume` are given."""
    return {
        "algorithm": ob.fedbuff(2, steps=2),
        "world": ob.World([0.5, 1.0, 1.5], jitter=0.1),
        "learner": ob.TorchLearner(linear, hospitals([16, 24, 32]), ob.Training(lr=0.1, batch_size=8)),
        "until": ob.Until(tasks=24),
        "evaluate": ob.Every(versions=2),
    }
