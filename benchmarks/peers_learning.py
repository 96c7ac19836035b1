"""FedBuff and FedCompass of the peers beside ours: time to an accuracy from the same model, data and speeds.

    benchmarks/peers/make_env.sh ~/peers flgo flsim appfl
    python benchmarks/peers_learning.py --peers ~/peers [--seeds 5] [--out FILE]

Ten clients with skewed shares of the digits, whose speeds differ by ten times, train 20 steps a task
(FedCompass: 4 to 20), all of them all the time. Each peer's own server code (benchmarks/peers/learning.py)
gets what Offbeat's simulator gets. Results are kept in papers/results/peers.json; `--page` writes the page
from them, without runs if nothing is missing.
"""

import argparse
import json
import math
import subprocess
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn

import offbeat as ob
from offbeat.core.streams import Purpose, stream
from offbeat.world.partitions import LabelDirichlet
from offbeat_papers.interval import interval

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "papers" / "results" / "peers.json"
CLIENTS, SECONDS, EVERY, TARGETS = 10, 150.0, 1.0, (0.85, 0.9)
SPEEDS = [0.05 * 10 ** (k / (CLIENTS - 1)) for k in range(CLIENTS)]  # seconds a step
SIZE, STEPS, Q_MIN, Q_MAX, LATEST, LR, BATCH = 3, 20, 4, 20, 1.2, 0.1, 32
RUNS = [
    ("fedbuff", "offbeat", "paper"),
    ("fedbuff", "flgo", "paper"),
    ("fedbuff", "flgo", "own"),
    ("fedbuff", "flsim", "paper"),
    ("fedbuff", "flsim", "own"),
    ("fedbuff", "appfl", "paper"),
    ("fedbuff", "appfl", "own"),
    ("fedcompass", "offbeat", "paper"),
    ("fedcompass", "appfl", "paper"),
    ("fedcompass", "appfl", "own"),
]
WHY = {
    (
        "fedbuff",
        "offbeat",
        "paper",
    ): "w := w + (1/K) Σ (1 + τ)^-½ Δ_i, Δ_i from the model that the client got",
    ("fedbuff", "flgo", "paper"): "the same formula, clients start again at once",
    ("fedbuff", "flgo", "own"): "the same formula; a client that has answered waits until the buffer is full",
    ("fedbuff", "flsim", "paper"): "the same formula: rate 1/K, exponent ½, normalised to staleness 0",
    ("fedbuff", "flsim", "own"): "the sum of K updates is not divided by K (rate 1), no weight by staleness: "
    "steps K times as long. Its default rate is 0.001, which is not shown",
    (
        "fedbuff",
        "appfl",
        "paper",
    ): "α = m/K makes up for its divisor m; Δ_i counts from the current "
    "model, not from the one that the client got: stale models pull back",
    ("fedbuff", "appfl", "own"): "α = 0.9 over the number of clients m instead of K, no weight by staleness",
    ("fedcompass", "offbeat", "paper"): "w := w + Σ 0.9 (1 + τ)^-½ p_i Δ_i, p_i = n_i/n",
    (
        "fedcompass",
        "appfl",
        "paper",
    ): "p_i = 1/m; w := (1 - Σ α_i) w + Σ α_i w_i, which counts from the current model, and so pulls "
    "back. Its scheduler begins with q_max steps, not q_min, and reckons a new group's time from the latest "
    "arrival of a running one, not the expected: other groups, more updates",
    (
        "fedcompass",
        "appfl",
        "own",
    ): "the same without the weight by staleness; speeds are averaged, 0.9 of the newest, as in its examples",
}
Job = dict[str, Any]


def make_job(seed: int) -> Job:
    """What both sides get: data, shares, speeds, the initial model and the options."""
    source = ob.load("digits")
    assert source.test is not None
    labels = source.train.y.numpy()
    parts = LabelDirichlet(alpha=0.3, min_size=10).split(labels, CLIENTS, stream(seed, Purpose.PARTITION))
    torch.manual_seed(seed)
    net = network()
    return {
        "x": source.train.x, "y": source.train.y, "test_x": source.test.x, "test_y": source.test.y,
        "parts": [torch.as_tensor(part).numpy() for part in parts], "speeds": SPEEDS,
        "initial": net.state_dict(), "widths": (64, 32, 10), "seed": seed, "seconds": SECONDS,
        "every": EVERY, "look": 0.05, "lr": LR, "batch": BATCH, "steps": STEPS, "size": SIZE,
        "q_min": Q_MIN, "q_max": Q_MAX, "latest": LATEST,
    }  # fmt: skip


def network() -> nn.Module:
    """The model: one hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def ours(job: Job, algorithm: str) -> dict[str, Any]:
    """Offbeat's run."""
    source = ob.load("digits")
    data = ob.federate(source.train, source.test, job["parts"])
    net = network()
    net.load_state_dict(job["initial"])
    options = {
        "fedbuff": lambda: ob.fedbuff(size=SIZE, steps=STEPS),
        "fedcompass": lambda: ob.fedcompass(q_min=Q_MIN, q_max=Q_MAX, latest=LATEST),
    }
    run = ob.simulate(
        options[algorithm](), ob.World(SPEEDS),
        ob.TorchLearner(net, data, ob.Training(lr=LR, batch_size=BATCH)),
        seed=job["seed"], until=ob.Until(seconds=SECONDS), evaluate=ob.Every(seconds=EVERY), guard=None,
    )  # fmt: skip
    curve = [(row["t"], row["accuracy"]) for row in run.metrics]
    last = run.metrics[-1]
    return {"curve": curve, "tasks": last["tasks"], "versions": last["version"], "version": ob.__version__}


def theirs(job: Job, peers: Path, peer: str, algorithm: str, variant: str) -> dict[str, Any]:
    """A peer's run, in its environment."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.pt"
        torch.save(job, path)
        script = Path(__file__).parent / "peers" / "learning.py"
        done = subprocess.run(
            [peers / peer / "bin" / "python", script, path, peer, algorithm, variant],
            capture_output=True, text=True, check=False, cwd=folder,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{peer} {algorithm} {variant}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(seeds: int, peers: Path) -> None:
    """Make the runs that are missing."""
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for seed in range(seeds):
        job = make_job(seed)
        for algorithm, peer, variant in RUNS:
            name = f"{algorithm} {peer} {variant} {seed}"
            if name in kept:
                continue
            found = (
                ours(job, algorithm) if peer == "offbeat" else theirs(job, peers, peer, algorithm, variant)
            )
            curve = found.pop("curve")
            kept[name] = {
                **found, "final": round(curve[-1][1], 4),
                "reached": {str(t): next((s for s, a in curve if a >= t), None) for t in TARGETS},
            }  # fmt: skip
            RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
            print(name, kept[name], flush=True)


def table(kept: dict[str, Any]) -> str:
    """The results as Markdown."""
    heads = [
        "algorithm",
        "implementation",
        *(f"s to {t:.0%} [95 %]" for t in TARGETS),
        "accuracy at the end",
        "versions",
        "updates",
        "how it differs",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for key in RUNS:
        algorithm, peer, variant = key
        runs = [value for name, value in kept.items() if name.rsplit(" ", 1)[0] == " ".join(key)]
        if not runs:
            lines.append(f"| {algorithm} | {peer}, {variant} |" + " not run |" * 5 + f" {WHY[key]} |")
            continue
        texts = [_time(runs, str(target)) for target in TARGETS]
        found = interval([100 * run["final"] for run in runs])
        assert found is not None
        final = f"{found.mean:.1f} % [{found.low:.1f}, {found.high:.1f}]"
        tasks, versions = (f"{mean(run[name] for run in runs):.0f}" for name in ("tasks", "versions"))
        kind = "" if peer == "offbeat" else ", as it is" if variant == "own" else ", set as the paper"
        name = f"{peer} {runs[0]['version']}{kind}"
        cells = [algorithm, name, *texts, final, versions, tasks, WHY[key]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _time(runs: list[dict[str, Any]], target: str) -> str:
    """The geometric mean over seeds; a run that did not get there counts as its length."""
    times = [run["reached"][target] for run in runs]
    missing = times.count(None)
    found = interval([math.log(time or SECONDS) for time in times])
    assert found is not None
    low, middle, high = (math.exp(value) for value in (found.low, found.mean, found.high))
    beyond = f" ({len(runs) - missing} of {len(runs)} seeds)" if missing else ""
    return f"{'> ' if missing else ''}{middle:.1f} [{low:.1f}, {high:.1f}]{beyond}"


def text(kept: dict[str, Any]) -> str:
    """The setting and the table, for the page of numbers."""
    seeds = len({name.rsplit(" ", 1)[1] for name in kept})
    return f"""\
How fast the FedBuff and FedCompass of FLGo, FLSim and APPFL learn beside ours, from the same start, and
where their formulas differ: {CLIENTS} clients with Dirichlet(0.3) shares of the digits, {min(SPEEDS):g} to
{max(SPEEDS):g} s per local step, {STEPS} steps per task (FedCompass: {Q_MIN} to {Q_MAX}, λ = {LATEST}),
FedBuff's K = {SIZE}, SGD at {LR} in batches of {BATCH}, an MLP of 32 units, {SECONDS:.0f} virtual seconds and
{seeds} seeds. Data, shares, speeds and the initial model of a seed are the same for all. All peers have the
same batches; ours follow the same law but come from another stream.

A peer's own server code receives the updates: FLGo's `package_handler`, FLSim's
`FedAvgWithLRFedBuffAggregator`, APPFL's `FedBuffAggregator`, and its `CompassScheduler` with
`FedCompassAggregator`. Our loop trains and delivers for all peers, and gives APPFL's scheduler its clock and
timers. *As it is* means the peer's own defaults, except for FLSim's rate. *Set as the paper* means the
options with which the peer's formula is closest to the paper's.

{table(kept)}
Times are geometric means with Student's 95 % interval over seeds. A run that did not reach the accuracy
counts as {SECONDS:.0f} s. The rows are in `papers/results/peers.json`.
"""


def main() -> None:
    """Measure what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder of make_env.sh; without it nothing is run")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    if words.peers is not None:
        measure(words.seeds, words.peers)
    kept = json.loads(RESULTS.read_text())
    print(table(kept))
    if words.out is not None:
        words.out.write_text(text(kept), encoding="utf-8")


if __name__ == "__main__":
    main()
