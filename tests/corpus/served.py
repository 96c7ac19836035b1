"""The served runs of the corpus: recipes, sites and helpers, and how the server of each is left."""

from dataclasses import dataclass
from typing import Any, Literal

from tests.corpus.own import MODULE
from tests.corpus.simulated import COMMITTEE, POINTS, Recipe

Left = Literal["finished", "stopped", "killed"]
"""How a server is left: at the run's end, by SIGTERM, or by SIGKILL."""


@dataclass(frozen=True)
class Served:
    """A run of `offbeat serve` with real processes of sites and helpers.

    Attributes:
        recipe: What differs from `BASE`.
        data: `--data` of each site.
        left: How its server is left.
        arrivals: Updates that have arrived when it is left.
        serve: Further options of `offbeat serve`.
        join: Further options of `offbeat join`.
        pace: Least seconds of a local step of each site.
        helpers: Names of the helpers.
        own: Whether it names functions of `tests.corpus.own`.
        log: Whether updates are written to updates.log, as large ones are.
        away: Whether the first site is killed in mid-run, until its lease has ended.
        tokens: Whether sites show tokens.
    """

    recipe: Recipe
    data: tuple[str, ...] = ("digits:1/60", "digits:2/60", "digits:3/60")
    left: Left = "finished"
    arrivals: int = 11
    serve: tuple[str, ...] = ()
    join: tuple[str, ...] = ()
    pace: tuple[float, ...] = (0.01, 0.02, 0.03)
    helpers: tuple[str, ...] = ()
    own: bool = False
    log: bool = False
    away: bool = False
    tokens: bool = False


BASE: Recipe = {
    "clients": 3,
    "data": {"dataset": "digits", "samples": 80, "test_samples": 20},
    "model": {"name": "mlp", "hidden": [2]},
    "training": {"lr": 0.1, "batch_size": 8},
    "until": {"tasks": 24},
    "evaluate": {"versions": 2},
    "seed": 7,
}
FEDBUFF: Recipe = {"algorithm": {"name": "fedbuff", "size": 2, "steps": 2}}
COMPASS: Recipe = {"algorithm": {"name": "fedcompass", "q_min": 2, "q_max": 6, "latest": 1.0}}
OWN_SITES: Any = {
    "data": tuple(f"{MODULE}:site_{k}" for k in range(3)), "serve": ("--test", f"{MODULE}:test_points"),
    "own": True,
}  # fmt: skip
OWN_MODEL: Recipe = {"data": {"sample_shape": [4], "classes": 2}, "model": POINTS["model"]}
NOISE: Recipe = {
    "algorithm": {"name": "fedbuff", "size": 3, "steps": 2},
    "privacy": {"clip": 0.5, "least": 3, "noise": {"multiplier": 4, "budget": {"delta": 1e-3}}},
}
SECURE: Recipe = {
    "algorithm": {"name": "fedbuff", "size": 3, "steps": 2},
    "privacy": {"clip": 0.5, "least": 3, "secure": COMMITTEE},
}
COLLAPSE: Recipe = {
    **OWN_MODEL, "guard": "off", "evaluate": {"versions": 1}, "until": {"tasks": 40},
    "algorithm": {"name": "fedasync", "steps": 2},
}  # fmt: skip
SPOILT: Any = {
    **OWN_SITES, "data": (f"{MODULE}:site_0", f"{MODULE}:site_1", f"{MODULE}:spoilt"),
    "pace": (0.02, 0.02, 0.25),
}  # fmt: skip
"""The features of a slow site are ten thousand times those of the others, and its labels the opposite."""
HELPERS = tuple(COMMITTEE["helpers"])


def left(recipe: Recipe, *kinds: Left, **more: Any) -> dict[Left, Served]:
    """The same run, left in several ways."""
    return {kind: Served(recipe, left=kind, **more) for kind in kinds}


_KINDS: dict[str, dict[Left, Served]] = {
    "served": left(FEDBUFF, "finished", "stopped", "killed", tokens=True),
    "served-log": left(FEDBUFF, "killed", log=True),
    "served-compass": left(COMPASS, "finished", "stopped", "killed", pace=(0.01, 0.02, 0.05)),
    "served-asmu": left(
        {"algorithm": {"name": "fedasmu", "epochs": 2, "size": 2, "period": 0.2, "threshold": 3}},
        "finished", "killed",
    ),
    "served-port": left(
        {"algorithm": {"name": "port", "epochs": 2, "size": 1, "tau_max": 1, "urgent": True}},
        "finished", "killed", pace=(0.01, 0.02, 0.2),
    ),
    "served-ringmaster": left(
        {"algorithm": {"name": "ringmaster", "steps": 2, "threshold": 2}},
        "finished", "killed", pace=(0.01, 0.02, 0.2),
    ),
    "served-scaffold": left({"algorithm": {"name": "scaffold", "steps": 2}}, "finished", "killed"),
    "served-momentum": left({"algorithm": {"name": "fedavgm", "steps": 2, "momentum": 0.9}}, "killed"),
    "served-noise": left(NOISE, "finished", "stopped", "killed"),
    "served-secure": left(SECURE, "finished", "stopped", "killed", helpers=HELPERS),
    "served-rollback": left(COLLAPSE, "finished", "killed", arrivals=30, **SPOILT),
    "served-guard": left({**COLLAPSE, "guard": {"factor": 30}}, "finished", "killed", arrivals=30, **SPOILT),
    "served-own": left(
        {**OWN_MODEL, **FEDBUFF, "loss": f"{MODULE}:loss",
         "metrics": {"accuracy": "accuracy", "positives": f"{MODULE}:positives"}},
        "finished", "killed", **OWN_SITES,
    ),
    "served-batch-norm": left(
        {**OWN_MODEL, **FEDBUFF, "model": {"name": f"{MODULE}:normalised"}}, "finished", "killed", **OWN_SITES
    ),
    "served-own-algorithm": left(
        {"algorithm": {"name": f"{MODULE}:stopping", "steps": 2, "arrivals": 17}},
        "finished", "killed", own=True,
    ),
    "served-skips": left(
        {"algorithm": {"name": f"{MODULE}:jumping", "steps": 2, "every": 7, "factor": 1e6},
         "until": {"tasks": 40}},
        "finished", "killed", arrivals=25, own=True,
    ),
    "served-evaluated-at-sites": left(
        {**FEDBUFF, "evaluate": {"versions": 2, "at": "both", "keep_best": "loss"}}, "finished", "killed",
        join=("--set", "site.validation=0.3"),
    ),
    "served-codec": left(
        {"algorithm": {**FEDBUFF["algorithm"], "with": {"codec": {"kind": "sparse_quantised", "levels": 4}}},
         "callbacks": ["csv"]},
        "finished", "killed",
    ),
    "served-robust": left(
        {"algorithm": {"name": "fedbuff", "size": 3, "steps": 2,
                       "with": {"clip": 0.5, "aggregator": {"kind": "median"}}}},
        "finished", "killed",
    ),
    "served-away": left(
        # The two that stay deliver at most ten updates a second: the lease ends long before the run.
        {**FEDBUFF, "until": {"tasks": 40}}, "finished", "stopped", arrivals=25, away=True,
        serve=("--set", "server.lease=1"), pace=(0.02, 0.1, 0.1),
    ),
}  # fmt: skip

SERVED: dict[str, Served] = {
    name if kind == "finished" else f"{name}-{kind}": run
    for name, kinds in _KINDS.items() for kind, run in kinds.items()
}  # fmt: skip
