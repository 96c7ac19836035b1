"""Four hospitals on a real network beside the simulator: accuracy, versions, staleness.

    python benchmarks/hospitals.py --folder runs/hospitals [--seconds 40]

One server and four sites, each a process of its own, on loopback, with the four hospitals' heart-disease
data. A site's local step takes at least 10, 20, 40 or 80 ms. The simulator gets the same data, the same
seconds per step and the same algorithm. A real run's timing is never the same twice, so its numbers are not
either.
Needs the dataset heart_disease.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from harness import Row, Rows, main

from offbeat.recipes.build import run_recipe
from offbeat.recipes.load import load_recipe
from offbeat.report import read_activity
from offbeat.runs.record import RunRecord, read_run

OFFBEAT = [sys.executable, "-c", "from offbeat.cli import main; main()"]
SITES = {"cleveland": 0.01, "hungarian": 0.02, "switzerland": 0.04, "va": 0.08}  # seconds a step
ALGORITHMS = {
    "fedcompass": "{name: fedcompass, q_min: 4, q_max: 20}",
    "fedfa": "{name: fedfa, steps: 20, size: 4, server_lr: 0.5}",
    "fedasmu": "{name: fedasmu, steps: 20, size: 2, period: 1, threshold: 2, ask_every: 5}",
    "port-urgent": "{name: port, epochs: 4, size: 2, tau_max: 2, urgent: true}",
}


def settings(algorithm: str, seconds: float) -> list[str]:
    """What is set in the recipe `heart_disease`."""
    return [
        f"algorithm={algorithm}", f"until={{seconds: {seconds:g}}}", "evaluate={seconds: 1}",
        f"world={{seconds_per_step: {list(SITES.values())}}}",
    ]  # fmt: skip


def deployed(name: str, sets: list[str], out: Path) -> RunRecord:
    """Serve the run, let the sites join, wait for the end."""
    state = out / f"{name}-deployed"
    log = (out / f"{name}.log").open("w")
    options = [word for text in sets for word in ("--set", text)]
    server = subprocess.Popen(
        [*OFFBEAT, "serve", "heart_disease", "--state", str(state), "--listen", "127.0.0.1:0", *options],
        stdout=log, stderr=log,
    )  # fmt: skip
    while not (state / "server.json").exists():
        if server.poll() is not None:
            sys.exit(f"the server has failed: see {log.name}")
        time.sleep(0.1)
    address = json.loads((state / "server.json").read_text())["address"]
    sites = []
    for client, (site, pace) in enumerate(SITES.items()):  # one after the other, for the simulator's numbers
        command = [
            "join",
            address,
            "--name",
            site,
            "--data",
            f"heart_disease:{site}",
            "--set",
            f"site.min_step_seconds={pace}",
        ]
        sites.append(subprocess.Popen([*OFFBEAT, *command], stdout=log, stderr=log, env=os.environ))
        while len(dict(read_run(state).site_names())) <= client:
            time.sleep(0.1)
    for process in (*sites, server):
        process.wait()
    return read_run(state)


def figures(run: RunRecord) -> Row:
    """What came of a run."""
    accuracies = [100 * m.accuracy for m in run.evaluations() if m.accuracy is not None]
    last = accuracies[-max(1, len(accuracies) // 5) :]
    staleness = [v for v, n in read_activity(run).staleness.items() for _ in range(n)]
    names = [r.name for r in run.rows("command")]
    return {
        "mean accuracy of the last fifth (%)": f"{sum(last) / len(last):.1f}",
        "best (%)": f"{max(accuracies):.1f}",
        "versions": names.count("aggregate"),
        "updates": len(staleness),
        "staleness": f"{sum(staleness) / max(1, len(staleness)):.2f}",
        "told in mid-task": f"{names.count('send')} fresh models, {names.count('recall')} recalls",
    }


def hospitals(folder: Path, seconds: float = 40.0) -> Rows:
    """Run each algorithm twice.

    folder: where the runs are kept
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, algorithm in ALGORITHMS.items():
        sets = settings(algorithm, seconds)
        yield {"algorithm": name, "where": "network", **figures(deployed(name, sets, folder))}
        run_recipe(load_recipe("heart_disease", sets=sets), out=folder / f"{name}-simulated")
        run = read_run(folder / f"{name}-simulated")
        yield {"algorithm": name, "where": "simulator", **figures(run)}


if __name__ == "__main__":
    main(hospitals)
