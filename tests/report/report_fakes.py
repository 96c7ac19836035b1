"""Run records in memory: typed in by hand, or from a toy fleet."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from offbeat.core.errors import has_diverged
from offbeat.core.journal import Row

_NUMBERS = count()
EMPTY = dict.fromkeys(("client", "task", "base", "version", "staleness", "steps"))


@dataclass(frozen=True)
class FakeRun:
    label: str = "fedavg"
    seed: int = 0
    written: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    duration: float = 0.0
    clients: int = 2
    algorithm: str = "fedavg"
    status: str = "finished"
    stop_reason: str | None = None
    recipe: dict[str, Any] | None = None
    samples: dict[int, int] = field(default_factory=dict)
    higher_is_better: dict[str, bool] = field(default_factory=dict)
    client_rows: list[dict[str, Any]] = field(default_factory=list)
    sites: dict[int, str] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    processors: tuple[str, ...] = ()
    summary: Any = None
    path: Path = field(default_factory=lambda: Path(f"runs/{next(_NUMBERS)}"))

    @property
    def recipe_as_run(self) -> dict[str, Any] | None:
        return self.recipe

    def rows(self, kind: str | None = None) -> Iterator[Row]:
        for seq, row in enumerate(self.written):
            if kind in (None, row["kind"]):
                columns = {k: v for k, v in row.items() if k in Row.__struct_fields__}
                yield Row(seq, **columns, data={k: v for k, v in row.items() if k not in columns})

    @property
    def diverged(self) -> bool:
        return self.status == "diverged" or has_diverged(self.stop_reason)

    @property
    def served(self) -> bool:
        return "plan" in self.meta

    def from_begin(self) -> "FakeRun":
        return self

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return self.evaluations

    def client_metrics(self, evaluation: int | None = None) -> list[dict[str, Any]]:
        return self.client_rows

    def site_names(self) -> dict[int, str]:
        return self.sites

    def client_names(self) -> dict[int, str]:
        return self.sites

    def client_samples(self) -> dict[int, int]:
        return self.samples


def event(t: float, name: str, **more: Any) -> dict[str, Any]:
    return {"t": t, "kind": "event", "name": name, **EMPTY, **more}


def command(t: float, name: str, **more: Any) -> dict[str, Any]:
    return {"t": t, "kind": "command", "name": name, **EMPTY, **more}


def evaluation(t: float, accuracy: float | None, version: int = 0, **more: Any) -> dict[str, Any]:
    row = {
        "t": t,
        "version": version,
        "tasks": version,
        "bytes_up": 100 * version,
        "bytes_down": 50 * version,
    }
    return row | {"loss": None, "accuracy": accuracy} | more


def reaching(label: str, seed: int, t: float | None, best: float = 0.95, **more: Any) -> FakeRun:
    """A run that gets to 0.9 accuracy at `t`, or stays at 0.5."""
    rows = [evaluation(0.0, 0.1), evaluation(1.0, 0.5, 1)]
    if t is not None:
        rows += [evaluation(t, 0.9, 2), evaluation(t + 1, best, 3), evaluation(t + 2, 0.7, 4)]
    return FakeRun(label, seed, evaluations=rows, **more)


def figure_1() -> FakeRun:
    """FedCompass, Figure 1: five clients at 10, 5, 4, 2.5, 2 steps a minute, Q_min 20, Q_max 100.

    (start, end in minutes; steps; group) of each client's tasks, as the text tells them.
    """
    tasks = {
        1: [(0, 2, 20, None), (2, 12, 100, 1), (12, 22, 100, 2), (22, 32, 100, 3)],
        2: [(0, 4, 20, None), (4, 12, 40, 1), (12, 22, 50, 2), (22, 32, 50, 3)],
        3: [(0, 5, 20, None), (5, 12, 28, 1), (12, 22, 40, 2), (22, 32, 40, 3)],
        4: [(0, 8, 20, None), (8, 22, 35, 2), (22, 32, 25, 3)],
        5: [(0, 10, 20, None), (10, 22, 24, 2), (22, 32, 20, 3)],
    }
    aggregations = {2: [1], 4: [2], 5: [3], 8: [4], 10: [5], 12: [1, 2, 3], 22: [1, 2, 3, 4, 5]}
    rows = [event(0.0, "joined", client=c, samples=100) for c in tasks] + [event(0.0, "begin")]
    times = [0, *aggregations, 28]
    version = 0
    for t in times:
        base = {c: sum(a <= s for a in aggregations) for c in tasks for s, e, _, _ in tasks[c] if e == t}
        for client in base:
            task = client * 10 + [e for _, e, _, _ in tasks[client]].index(t)
            old = {"client": client, "task": task, "base": base[client], "staleness": version - base[client]}
            rows.append(event(60.0 * t, "arrived", version=version, **old))
        if t in aggregations:
            version += 1
            group = {12: 1, 22: 2}.get(t)
            more = {"group": group} if group else {}
            rows.append(command(60.0 * t, "aggregate", version=version, clients=aggregations[t], **more))
        for client, todo in tasks.items():
            for k, (start, _, steps, in_group) in enumerate(todo):
                if start == t:
                    more = {"group": in_group} if in_group else {}
                    new = {"client": client, "task": client * 10 + k, "base": version, "steps": steps}
                    rows.append(command(60.0 * t, "train", **new, **more))
    return FakeRun(
        "fedcompass",
        written=rows,
        evaluations=[
            evaluation(60.0 * t, 0.1 + 0.02 * t, k, loss=2.0 - 0.05 * t) for k, t in enumerate(times)
        ],
        duration=28 * 60.0,
        clients=5,
        algorithm="fedcompass",
        recipe={"algorithm": {"name": "fedcompass", "q_min": 20, "q_max": 100}, "seed": 0},
        samples=dict.fromkeys(tasks, 100),
    )


def fleet(label: str, seed: int, *, clients: int = 8, tasks: int = 60, lossy: bool = False) -> FakeRun:
    """A toy asynchronous run: every arrival makes a version, and its client goes on at once."""
    rng = random.Random(f"{label}/{seed}")
    speed = {c: rng.uniform(1.0, 8.0) for c in range(clients)}
    rows = [event(0.0, "joined", client=c, samples=50 + c) for c in speed]
    rows += [command(0.0, "train", client=c, task=c, base=0, steps=20) for c in speed]
    due = {c: (speed[c], c, 0) for c in speed}
    version, t, evaluations = 0, 0.0, [evaluation(0.0, 0.1, 0, loss=2.3)]
    for task in range(clients, clients + tasks):
        client = min(due, key=lambda c: due[c])
        t, old, base = due[client]
        if lossy and rng.random() < 0.1:
            rows.append(event(t, "lost", client=client, task=old, reason="link"))
        else:
            who = {
                "client": client,
                "task": old,
                "base": base,
                "version": version,
                "staleness": version - base,
            }
            rows.append(event(t, "arrived", **who))
            version += 1
            rows.append(command(t, "aggregate", version=version, clients=[client], tasks=[old]))
        rows.append(command(t, "train", client=client, task=task, base=version, steps=20))
        due[client] = (t + speed[client] * rng.uniform(0.9, 1.1), task, version)
        share = 0.9 * (1 - 0.97**version) + 0.1
        evaluations.append(evaluation(t, share, version, loss=2.3 * (1.05 - share)))
    samples = {c: 50 + c for c in speed}
    return FakeRun(
        label, seed, rows, evaluations, t, clients, "fedasync", recipe={"seed": seed}, samples=samples
    )
