"""What is measured: tables of variants. A new one is a line here."""

from dataclasses import dataclass, field, replace

from job import Job

OURS = "Offbeat"


@dataclass(frozen=True)
class Variant:
    """One row: a runner and its job. `runner` is bare, ours, or the name of a peer."""

    name: str
    runner: str
    job: Job


@dataclass(frozen=True)
class Table:
    """Rows that do the same work. A row's time is divided by what it did in `unit`, "tasks" or local "steps".

    The time shown is of `shown` units, in units of `scale` seconds. Ratios are of times per unit, over the
    bare row with as many processes, or else the one with one.
    """

    key: str
    title: str
    rows: list[Variant] = field(default_factory=list)
    unit: str = "steps"
    shown: int = 4000
    column: str = "s"
    scale: float = 1.0


def _both(job: Job) -> list[Variant]:
    """Bare and ours, in one process and in two."""
    two = replace(job, processes=2)
    return [
        Variant("bare loop", "bare", job),
        Variant(f"{OURS}", "ours", job),
        Variant(f"{OURS}, batched", "ours", replace(job, executor="batched")),
        Variant("bare loop, 2 processes", "bare", two),
        Variant(f"{OURS}, 2 workers", "ours", two),
    ]


def _peers(names: dict[str, str], job: Job) -> list[Variant]:
    return [Variant(title, runner, job) for runner, title in names.items()]


ONE_CORE = {
    "fedlab": "FedLab",
    "pfl": "pfl-research",
    "flgo": "FLGo",
    "appfl": "APPFL",
    "fluke": "fluke",
    "flsim": "FLSim",
}


def _empty() -> Table:
    job = Job("none", rounds=500)
    few = replace(job, rounds=20)
    rows = [Variant("bare loop", "bare", job)]
    rows += [
        Variant(f"{OURS}, {name}", "ours", replace(job, algorithm=name))
        for name in ("fedavg", "fedbuff", "fedasync")
    ]
    own = f"{OURS}, fedavg, its client code"
    rows += [Variant(own, "ours", replace(job, client_code=True))]
    rows += _peers(ONE_CORE, few)
    rows += [Variant("APPFL, its client code", "appfl", replace(few, client_code=True))]
    rows += [
        Variant("Flower", "flower", replace(few, processes=2)),
        *(
            Variant(f"{title}, fedbuff", peer, replace(few, algorithm="fedbuff"))
            for peer, title in {"flgo": "FLGo", "appfl": "APPFL", "flsim": "FLSim"}.items()
        ),
    ]
    return Table(
        "empty",
        "Tasks without work: 21,840 parameters, 10 of 100 clients",
        rows,
        "tasks",
        1,
        "ms per task",
        1e-3,
    )


def _rounds(model: str, title: str, peers: bool) -> Table:
    job = Job(model, data="fashion.npz")
    rows = _both(job)
    if peers:
        rows += _peers(ONE_CORE, job)
        rows += [Variant("Flower, 2 actors", "flower", replace(job, processes=2))]
    return Table(
        model, f"FedAvg on Fashion-MNIST, {title}: 20 rounds, 10 of 100 clients, 20 steps of batch 32", rows
    )


def _asynchronous() -> Table:
    job = Job("cnn", data="fashion.npz")
    rows = [Variant("bare loop", "bare", job)]
    for name in ("fedbuff", "fedasync", "fedcompass", "fedfa", "fedasmu"):
        rows.append(Variant(f"{OURS}, {name}", "ours", replace(job, algorithm=name)))
    rows.append(Variant("bare loop, 2 processes", "bare", replace(job, processes=2)))
    rows.append(
        Variant(f"{OURS}, fedbuff, 2 workers", "ours", replace(job, algorithm="fedbuff", processes=2))
    )
    for peer, title, names in (
        ("flgo", "FLGo", ("fedbuff", "fedasync")),
        ("appfl", "APPFL", ("fedbuff", "fedasync", "fedcompass")),
        ("flsim", "FLSim", ("fedbuff",)),
    ):
        rows += [Variant(f"{title}, {name}", peer, replace(job, algorithm=name)) for name in names]
    return Table(
        "async", "The same work asynchronously: 200 tasks of 20 steps, CNN of 21,840 parameters", rows
    )


def _resnet() -> Table:
    job = Job("resnet18", rounds=1, clients=2, per_round=2, steps=8, data="random32.npz")
    return Table(
        "resnet18", "ResNet-18, random images of 3x32x32, batch 32", _both(job),
        shown=1, column="ms per step",
        scale=1e-3,
    )  # fmt: skip


TABLES = [
    _empty(),
    _rounds("cnn", "CNN of 21,840 parameters", peers=True),
    _rounds("logistic", "logistic regression", peers=False),
    _rounds("mlp", "MLP 784-200-10", peers=False),
    _asynchronous(),
    _resnet(),
]
