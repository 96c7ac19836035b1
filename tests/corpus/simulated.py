"""The simulated runs of the corpus: their recipes, and where they are interrupted."""

from dataclasses import dataclass
from typing import Any

from tests.corpus.own import MODULE

Recipe = dict[str, Any]


@dataclass(frozen=True)
class Simulated:
    """A run of `offbeat run`, to its end; and a second one of the same recipe that is interrupted.

    Attributes:
        recipe: What differs from `BASE`.
        stops: Updates that have arrived when the second one is interrupted. None means there is none.
        killed: The second one is killed, not interrupted.
        options: Options of `offbeat run` and `offbeat resume`.
        own: Whether it names functions of `tests.corpus.own`.
        by_values: Why the journal follows from values of tensors, so that what comes after the interruption
            differs on another kind of processor. Empty means that only losses and metrics do, in their last
            digits.
    """

    recipe: Recipe
    stops: int | None = 13
    killed: bool = False
    options: tuple[str, ...] = ()
    own: bool = False
    by_values: str = ""


BASE: Recipe = {
    "clients": 4,
    "data": {"dataset": "digits", "samples": 80, "test_samples": 20, "partition": {"kind": "iid"}},
    "model": {"name": "mlp", "hidden": [2]},
    "training": {"lr": 0.1, "batch_size": 8},
    "world": {"seconds_per_step": [0.5, 0.75, 1.0, 2.0], "jitter": 0.1},
    "until": {"tasks": 24},
    "evaluate": {"versions": 2},
    "seed": 7,
}
AWAY = {
    "seconds_per_step": [0.5, 0.75, 1.0, 2.0],
    "availability": {"dropout": 0.15, "period": 12.0, "present": 0.7},
    "network": {"latency": 0.05, "up": 1.0e5, "down": 1.0e6},
}
"""Tasks are lost, clients leave and come back, transfers take time."""
POINTS: Recipe = {
    "data": {"dataset": f"{MODULE}:cohort", "partition": {"kind": "iid"}},
    "model": {"name": f"{MODULE}:linear"},
}  # fmt: skip
"""Data and model of one's own."""
COMMITTEE = {"helpers": ["anna", "bert", "cleo"], "colluding": 1}


def of(name: str, *, stops: int | None = 13, world: Recipe | None = None, **options: Any) -> Simulated:
    """A run of a published algorithm."""
    changed = {"algorithm": {"name": name, **options}}
    return Simulated(changed if world is None else {**changed, "world": world}, stops)


def privately(privacy: Recipe, stops: int = 13, **options: Any) -> Simulated:
    """A run of FedBuff with privacy."""
    algorithm = {"name": "fedbuff", "size": 3, "steps": 2, **options}
    return Simulated({"algorithm": algorithm, "privacy": {"clip": 0.5, "least": 3, **privacy}}, stops)


def robustly(aggregator: Recipe, stops: int | None = 13, **more: Any) -> Simulated:
    """A run of FedBuff with a robust aggregator."""
    parts = {"clip": 0.5, "aggregator": aggregator}
    return Simulated({"algorithm": {"name": "fedbuff", "size": 3, "steps": 2, "with": parts}, **more}, stops)


ALGORITHMS = {
    "fedavg": of("fedavg", steps=2, clients_per_round=3, world=AWAY),
    "fedavgm": of("fedavgm", steps=2, momentum=0.9),
    "first_of": of("first_of", steps=2, share=0.6, window=1.0, least=2, world=AWAY),
    "first_of-next": of("first_of", steps=2, k=3, late="next", world=AWAY),
    "first_of-stop": of("first_of", steps=2, k=3, late="stop", world=AWAY),
    "rennala": of("rennala", steps=2, size=4, world=AWAY),
    "malenia": of("malenia", steps=2, size=4),
    "delay_adaptive": of("delay_adaptive", steps=2, threshold=2),
    "ringmaster": of("ringmaster", steps=2, threshold=2, world=AWAY),
    "ringleader": of("ringleader", steps=2),
    "ca2fl": of("ca2fl", size=3, steps=2, left="drop", world=AWAY),
    "ace": of("ace", steps=2, first="seen", max_age=6),
    "mifa": of("mifa", steps=2, clients_per_round=3),
    "fedvarp": of("fedvarp", steps=2, clients_per_round=3),
    "fedstale": of("fedstale", steps=2, clients_per_round=3, beta=0.25),
    "fadas": of("fadas", size=3, steps=2, server_lr=0.02),
    "fedprox": of("fedprox", steps=2, mu=0.1),
    "fednova": of("fednova", epochs=1, clients_per_round=3, momentum=0.5),
    "fedadagrad": of("fedadagrad", steps=2, server_lr=0.02),
    "fedadam": of("fedadam", steps=2, server_lr=0.02),
    "fedyogi": of("fedyogi", steps=2, server_lr=0.02),
    "feddyn": of("feddyn", steps=2, clients_per_round=2, alpha=0.1),
    "scaffold": of("scaffold", steps=2, clients_per_round=3),
    "moon": of("moon", steps=2, clients_per_round=3, mu=5.0),
    "fedasync": of("fedasync", steps=2, rho=0.01),
    "fedasync-away": of("fedasync", steps=2, world=AWAY),
    "fedbuff": of("fedbuff", size=3, steps=2, concurrency=3),
    "fedfa": of("fedfa", size=3, steps=2, concurrency=3, weights="share", normalize=True),
    "fedlws": of("fedlws", steps=2),
    "asofed": of("asofed", steps=2, concurrency=3, against="copy"),
    "fedasmu": of("fedasmu", epochs=3, size=2, period=2.0, threshold=5,
                  controls={"lam_rate": 0.1}, merge={"gamma_rate": 0.1}),
    "fedasmu-strict": of("fedasmu", epochs=3, size=1, period=2.0, threshold=5, tau_max=1),
    "fedssmu": of("fedssmu", epochs=3, clients_per_round=4),
    "fedat": of("fedat", steps=2, retier=True),
    "port": of("port", epochs=3, size=1, tau_max=2, urgent=True),
    "fedcompass": of("fedcompass", q_min=2, q_max=9, momentum=0.5),
}  # fmt: skip

EQUAL = {"seconds_per_step": [0.1, 0.2, 0.3, 0.7]}


COMPASS = {
    "fedcompass-away": of("fedcompass", q_min=2, q_max=6, normalize=True, speed_memory=0.5, world=AWAY),
    "fedcompass-ties": of("fedcompass", q_min=1, q_max=5, latest=1.0, world=EQUAL),
}

LAYERS = {
    # privacy, in simulations
    "noise": privately({"noise": {"multiplier": 4, "budget": {"delta": 1e-3}}}),
    "noise-in-bands": privately({"noise": {"multiplier": 4, "bands": 3, "budget": {"delta": 1e-3}}}),
    "noise-to-its-budget": privately(
        {"noise": {"releases": 3, "budget": {"epsilon": 2.0, "delta": 1e-3}}}, stops=8
    ),
    "secure": privately({"secure": COMMITTEE}),
    "secure-masked": privately({"secure": {**COMMITTEE, "masks": True}, "noise": {"multiplier": 2}}),
    "noise-in-groups": Simulated(
        {
            "algorithm": {"name": "fedcompass", "q_min": 2, "q_max": 9},
            "privacy": {"clip": 0.5, "least": 2, "noise": {"multiplier": 4}, "samples_unit": 8},
        }
    ),
    "noise-of-examples": Simulated(
        {
            "algorithm": {"name": "fedbuff", "size": 2, "steps": 2},
            "examples": {"noise": 1.0, "clip": 1.0, "delta": 1e-3},
        }
    ),
    # the radio, and codecs
    "wireless": Simulated(
        {
            "algorithm": {
                "name": "wireless",
                "steps": 2,
                "scheduled": 2,
                "period": 2.5,
                "gamma": 0.7,
                "policy": {"kind": "best_channel"},
            },
            "world": {"seconds_per_step": [0.5, 0.75, 1.0, 2.0], "channel": {"symbols": 3000, "period": 2.5}},
        }
    ),
    "wireless-labels": Simulated(
        {
            "algorithm": {
                "name": "wireless",
                "steps": 2,
                "scheduled": 2,
                "policy": {"kind": "data_importance"},
            },
            "world": {"seconds_per_step": [0.5, 0.75, 1.0, 2.0], "channel": {"symbols": 3000}},
        }
    ),
    "wireless-norms": Simulated(
        {
            "algorithm": {
                "name": "wireless",
                "steps": 2,
                "scheduled": 2,
                "period": 2.5,
                "policy": {"kind": "best_channel_best_norm"},
            },
            "world": {"seconds_per_step": [0.5, 0.75, 1.0, 2.0], "channel": {"symbols": 3000}},
        },
        by_values="the policy chooses by the norms of updates",
    ),
    "radio-slots": Simulated(
        {
            "algorithm": {
                "name": "fedasync",
                "steps": 2,
                "with": {
                    "codec": {"kind": "sparse_quantised", "levels": 4},
                    "radio": {"slot": 0.4, "halving": 10},
                },
            },
            "world": {"seconds_per_step": [0.5, 0.75, 1.0, 2.0], "channel": {"symbols": 3000}},
        }
    ),
    "codec": of("fedbuff", size=2, steps=2, **{"with": {"codec": {"kind": "qsgd", "levels": 4}}}),
    "codec-top-k": of("fedasync", steps=2, **{"with": {"codec": {"kind": "top_k", "fraction": 0.2}}}),
    # robust aggregation
    "robust-trimmed": robustly({"kind": "trimmed_mean", "beta": 0.34}),
    "robust-median": robustly({"kind": "median"}, stops=None),
    "robust-krum": robustly({"kind": "multi_krum", "f": 0, "n": 1}, stops=None),
    "robust-geometric": robustly({"kind": "geometric_median"}, stops=None),
    "robust-centered": robustly({"kind": "centered_clip", "tau": 0.3}),
    "robust-buckets": robustly({"kind": "buckets", "buckets": 3}),
    "robust-root": Simulated(
        {
            "data": {**BASE["data"], "root": 16},
            "algorithm": {
                "name": "fedasync",
                "steps": 2,
                "with": {"aggregator": {"kind": "zeno_plus", "steps": 2}},
            },
        }
    ),
    "robust-aflguard": Simulated(
        {
            "data": {**BASE["data"], "root": 16},
            "algorithm": {
                "name": "fedasync",
                "steps": 2,
                "with": {"aggregator": {"kind": "aflguard", "steps": 2}},
            },
        }
    ),
    "clipped": of("fedasync", steps=2, **{"with": {"clip": 0.05}}),
    "composed": of(
        "fedbuff",
        size=2,
        steps=2,
        **{
            "with": {
                "server_steps": {"name": "fedavgm", "momentum": 0.5},
                "objective": {"name": "fedprox"},
            }
        },
    ),
    # evaluations, ends, options
    "evaluated-at-clients": Simulated(
        {
            "data": {**BASE["data"], "validation": 0.3},
            "evaluate": {"versions": 4, "at": "both"},
            "algorithm": {"name": "fedbuff", "size": 2, "steps": 2},
        }
    ),
    "keeps-the-best": Simulated(
        {
            "algorithm": {"name": "fedbuff", "size": 2, "steps": 2},
            "metrics": ["accuracy", "auroc"],
            "evaluate": {"versions": 1, "keep_best": "loss"},
            "until": {"tasks": 24, "accuracy": 1.0},
        },
        by_values="which version is the best one follows from losses",
    ),
    "early-stopping": Simulated(
        {
            "algorithm": {"name": "fedasync", "steps": 1},
            "training": {"lr": 1e-6, "batch_size": 8},
            "until": {"tasks": 100, "early_stopping": {"metric": "loss", "patience": 4, "min_delta": 0.5}},
            "evaluate": {"versions": 3},
        },
        stops=7,
    ),  # the learning rate is so small that no loss improves by 0.5
    "by-seconds": Simulated(
        {
            "algorithm": {"name": "fedbuff", "size": 2, "steps": 2},
            "until": {"seconds": 12.0},
            "evaluate": {"seconds": 1.5},
        }
    ),
    "csv-tracker": Simulated({"algorithm": {"name": "fedbuff", "size": 2, "steps": 2}, "callbacks": ["csv"]}),
    "trace": Simulated(
        {
            "clients": 3,
            "algorithm": {"name": "fedbuff", "size": 2, "steps": 2},
            "world": {"trace": "trace.csv", "jitter": 0.05},
        }
    ),
    "laws": Simulated(
        {
            "algorithm": {"name": "fedasync", "steps": 2},
            "guard": "off",
            "training": {
                "lr": 0.05,
                "batch_size": 8,
                "momentum": 0.9,
                "clip_norm": 1.0,
                "decay": {"kind": "cosine", "versions": 30},
            },
            "world": {
                "seconds_per_step": {"law": "exponential", "mean": 1.0, "minimum": 0.2},
                "change": 0.3,
                "network": {"delay": {"law": "uniform", "low": 0.1, "high": 0.5}},
            },
        }
    ),
    "client-memory": Simulated(
        {"algorithm": {"name": "scaffold", "steps": 2, "clients_per_round": 2}},
        options=("--client-memory", "1KB"),
    ),
    "batched": Simulated({"algorithm": {"name": "fedavg", "steps": 2}}, options=("--executor", "batched")),
    "killed": Simulated({"algorithm": {"name": "fedbuff", "size": 4, "steps": 2}}, stops=14, killed=True),
    "killed-with-states": Simulated(
        {"algorithm": {"name": "feddyn", "steps": 2, "clients_per_round": 2}}, stops=14, killed=True
    ),
}

OWN = {
    "own-functions": Simulated(
        {
            **POINTS, "loss": f"{MODULE}:loss",
            "metrics": {"accuracy": "accuracy", "positives": f"{MODULE}:positives"},
            "algorithm": {"name": "fedbuff", "size": 2, "steps": 2},
        },
        own=True,
    ),
    "own-step": Simulated(
        {
            **POINTS, "step": f"{MODULE}:step", "evaluate_batch": f"{MODULE}:evaluate",
            "algorithm": {"name": "fedasync", "steps": 2},
        },
        own=True,
    ),
    "own-algorithm": Simulated(
        {**POINTS, "algorithm": {"name": f"{MODULE}:stopping", "steps": 2, "arrivals": 17}}, own=True
    ),
    "own-callback": Simulated(
        {**POINTS, "algorithm": {"name": "fedasync", "steps": 2}, "callbacks": [f"{MODULE}:Counter"]},
        own=True,
    ),
    "batch-norm": Simulated(
        {
            **POINTS, "model": {"name": f"{MODULE}:normalised"},
            "algorithm": {"name": "fedbuff", "size": 2, "steps": 2},
        },
        own=True,
    ),
    **{
        f"batch-norm-{policy}": Simulated(
            {
                **POINTS, "model": {"name": f"{MODULE}:normalised"},
                "algorithm": {"name": "fedbuff", "size": 2, "steps": 2, "with": {"buffers": policy}},
            },
            own=True,
        )
        for policy in ("mean", "local", "recompute")
    },
    "personal": Simulated(
        {
            **POINTS, "model": {"name": f"{MODULE}:two_parts"}, "personal": ["1.*"],
            "algorithm": {"name": "fedbuff", "size": 2, "steps": 2},
        },
        own=True,
    ),
    # the guard
    "guard-refuses": Simulated(
        {
            "clients": 4, "model": {"name": f"{MODULE}:linear"}, "loss": "cross_entropy",
            "data": {"dataset": f"{MODULE}:hospitals",
                     "options": {"sizes": [8, 8, 8, 8], "scales": [1.0, 1.0, 1.0, 1e6]}},
            "algorithm": {"name": "fedbuff", "size": 2, "steps": 2}, "until": {"tasks": 40},
        },
        stops=20, own=True,
    ),  # the features of one client are a million times those of the others
    "guard-skips": Simulated(
        {
            **POINTS, "algorithm": {"name": f"{MODULE}:jumping", "steps": 2, "every": 7, "factor": 1e6},
            "until": {"tasks": 40},
        },
        stops=20, own=True,
    ),
}  # fmt: skip

SIMULATED: dict[str, Simulated] = {**ALGORITHMS, **COMPASS, **LAYERS, **OWN}
