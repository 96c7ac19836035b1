"""The report that the page of results links: two algorithms, three seeds, on a part of the digits."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import offbeat as ob
from offbeat.models import MLP
from offbeat.report import write_html

ALGORITHMS = {"fedavg": ob.fedavg(steps=10), "fedcompass": ob.fedcompass(q_min=5, q_max=50)}
SPEEDS = [0.1, 0.1, 0.1, 0.2, 0.5, 1.0]


def write_report(out: Path, seconds: float = 40) -> Path:
    """Run, and write the page."""
    source = ob.load("digits", samples=600, test_samples=300)
    data = ob.federate(source, None, np.array_split(np.arange(600), len(SPEEDS)))
    learner = ob.TorchLearner(lambda: MLP(64, 10), data, ob.Training(lr=0.1))
    with TemporaryDirectory() as folder:
        for label, algorithm in ALGORITHMS.items():
            for seed in range(3):
                ob.simulate(
                    algorithm, ob.World(SPEEDS, jitter=0.05), learner, seed=seed,
                    until=ob.Until(seconds=seconds), evaluate=ob.Every(seconds=1),
                    label=label, out=f"{folder}/{label}-{seed}",
                )  # fmt: skip
        records = ob.find_runs(folder)
        return write_html(records, out, target=0.8, baseline="fedavg", title="A report of Offbeat")
