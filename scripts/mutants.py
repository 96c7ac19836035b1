"""Change the source in one place at a time and see whether the tests of that place fail.

    python scripts/mutants.py                   # all of them; exits with 1 if a change is not caught
    python scripts/mutants.py staleness port    # those whose file or comment names one of these words

Each mutant is a wrong rule of the core or of a paper. The tests run on a copy of the package, with the
markers that `make test` has, and stop at the first failure.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"


@dataclass(frozen=True)
class Mutant:
    """A change of one place: `old`, which is in `file` once, becomes `new`; `tests` are to notice."""

    file: str
    old: str
    new: str
    tests: str
    rule: str


CORE, GOLDEN, ALGORITHMS = "tests/core", "tests/golden", "tests/algorithms"
PAPERS = f"{GOLDEN} {ALGORITHMS}"

MUTANTS = [
    Mutant(
        "core/server.py",
        "task.staleness = self.version - task.base",
        "task.staleness = max(0, self.version - task.base - 1)",
        f"{CORE} {GOLDEN}",
        "staleness counts from 0",
    ),
    Mutant(
        "core/server.py",
        'task.arrival = self.counts["arrived"]',
        "task.arrival = 0",
        f"{CORE} {GOLDEN} tests/conformance",
        "arrivals are numbered",
    ),
    Mutant(
        "core/server.py",
        'self.counts["lost"] -= 1',
        'self.counts["lost"] -= 0',
        CORE,
        "a task that is brought back is not lost",
    ),
    Mutant(
        "core/server.py",
        "        if task.recalled:\n",
        "        if False:\n",
        CORE,
        "a task is recalled once",
    ),
    Mutant(
        "core/server.py",
        "clock = command.clock or self.version + 1",
        "clock = command.clock or self.version",
        f"{CORE} {GOLDEN} {ALGORITHMS} tests/sim",
        "t of a model sent in mid-task counts from 1",
    ),
    Mutant(
        "core/server.py",
        "task.population = len(self.fleet)",
        "task.population = max(1, len(self.tasks))",
        f"{CORE} {GOLDEN}",
        "N counts all clients that are there",
    ),
    Mutant(
        "core/fleet.py",
        "return self._samples[client] / self.total_samples",
        "return self._samples[client] / (self.total_samples + 1)",
        f"{CORE} {GOLDEN}",
        "shares add up to 1",
    ),
    Mutant(
        "core/fleet.py",
        "self._place[last] = place",
        "self._place[last] = 0",
        CORE,
        "the idle list knows each client's place",
    ),
    Mutant(
        "core/streams.py",
        "counter = np.array([0, 0, client, task]",
        "counter = np.array([0, 0, client, 0]",
        CORE,
        "each task has a stream of its own",
    ),
    Mutant(
        "core/staleness.py",
        "self.alpha * (staleness + 1.0) ** -self.a",
        "self.alpha * (staleness + 2.0) ** -self.a",
        f"{CORE} {GOLDEN}",
        "polynomial staleness weight",
    ),
    Mutant(
        "core/staleness.py",
        "(self.a * (staleness - self.b) + 1.0)",
        "(self.a * staleness + 1.0)",
        CORE,
        "hinge staleness weight",
    ),
    Mutant(
        "core/global_model.py",
        "alpha=1 / update.task.population",
        "alpha=1 / len(list(updates))",
        f"{CORE} {GOLDEN} {ALGORITHMS}",
        "the shared vector is a mean over all clients",
    ),
    Mutant(
        "core/global_model.py",
        "if self.step_memories and command.server_step:",
        "if self.step_memories:",
        f"{CORE} {GOLDEN} {ALGORITHMS}",
        "a first response passes by the server step",
    ),
    Mutant(
        "core/global_model.py",
        "integers = max(reversed(updates)",
        "integers = min(reversed(updates)",
        f"{CORE} {GOLDEN} {ALGORITHMS}",
        "integer buffers are the latest arrival's",
    ),
    Mutant(
        "algorithms/schedules.py",
        "            case Lost() | Left():\n",
        "            case Lost():\n",
        f"{ALGORITHMS} tests/properties",
        "a round does not wait for who left",
    ),
    Mutant(
        "algorithms/schedules.py",
        "free = (self.concurrency or len(view.fleet)) - view.running",
        "free = (self.concurrency or len(view.fleet)) - view.running - 1",
        f"{ALGORITHMS} tests/properties",
        "every free place is given",
    ),
    Mutant(
        "algorithms/aggregators.py",
        "[c * (1 - alpha) for c in weights] + [alpha]",
        "[*weights, alpha]",
        PAPERS,
        "FedAsync mixes one update after the other",
    ),
    Mutant(
        "algorithms/aggregators.py",
        "(steps - rho * (1 - rho**steps) / (1 - rho))",
        "(steps - rho * (1 - rho**(steps + 1)) / (1 - rho))",
        PAPERS,
        "FedNova: what steps with momentum add up to",
    ),
    Mutant(
        "algorithms/aggregators.py",
        "zip(q, a, strict=True)) / sum(q)",
        "zip(q, a, strict=True))",
        PAPERS,
        "the mean of a is divided by the sum of q",
    ),
    Mutant(
        "algorithms/aggregators.py",
        ".mul_(self.beta).add_(step)",
        ".mul_(1 - self.beta).add_(step)",
        PAPERS,
        "FedAvgM's momentum",
    ),
    Mutant(
        "algorithms/fedopt.py", "torch.sub(v, g2).sign_()", "torch.sub(g2, v).sign_()", GOLDEN, "Yogi's sign"
    ),
    Mutant(
        "algorithms/fedopt.py",
        'from_memory(memory, "v", step, self.tau**2)',
        'from_memory(memory, "v", step, self.tau)',
        GOLDEN,
        "v starts from the square of tau",
    ),
    Mutant(
        "algorithms/scaffold.py",
        "(run.steps * run.lr)",
        "run.lr",
        PAPERS,
        "SCAFFOLD: the mean gradient is over K steps",
    ),
    Mutant(
        "algorithms/feddyn.py",
        "alpha = self.alpha / _population([u.task for u in updates])",
        "alpha = self.alpha / len(updates)",
        PAPERS,
        "FedDyn: h is a mean over all clients",
    ),
    Mutant(
        "algorithms/fedcompass.py",
        "q, g = max(fits)",
        "q, g = min(fits)",
        PAPERS,
        "FedCompass joins the group with most steps",
    ),
    Mutant(
        "algorithms/fedcompass.py",
        "            if now < g.T_a:\n",
        "            if True:\n",
        PAPERS,
        "FedCompass aims at groups that still run",
    ),
    Mutant(
        "algorithms/fedcompass.py",
        "(1 - self.speed_memory) * measured + self.speed_memory * known",
        "self.speed_memory * measured + (1 - self.speed_memory) * known",
        PAPERS,
        "the share of the old speed that is kept",
    ),
    Mutant(
        "algorithms/port.py",
        "view.version + 1 - t.base > self.tau_max",
        "view.version + 1 - t.base >= self.tau_max",
        PAPERS,
        "PORT's bound on staleness",
    ),
    Mutant(
        "algorithms/port.py",
        "return self.alpha * g + self.beta * (1 + cos) / 2",
        "return self.alpha * g + self.beta * cos",
        PAPERS,
        "PORT's trust in a direction",
    ),
    Mutant(
        "algorithms/fedasmu/__init__.py",
        "s > self.tau_max:",
        "s >= self.tau_max:",
        PAPERS,
        "FedASMU drops what is staler than the bound",
    ),
    Mutant(
        "algorithms/fedasmu/aggregation.py",
        "-by_lam * c.lam * log(c.s)",
        "by_lam * c.lam * log(c.s)",
        PAPERS,
        "FedASMU: the slope of sigma",
    ),
    Mutant(
        "algorithms/fedat.py",
        "(state.seconds[client] + seconds) / 2",
        "seconds",
        PAPERS,
        "FedAT: a client's time is the mean of old and new",
    ),
    Mutant(
        "algorithms/fedfa.py",
        "if not window.full:",
        "if False:",
        PAPERS,
        "FedFa's window is full before it moves the model",
    ),
    Mutant(
        "net/client/examples_ledger.py",
        "self.secret = os.urandom(32)",
        "self.secret = self.secret or os.urandom(32)",
        "tests/net/client/test_examples_ledger.py",
        "privacy of examples: each task has its own secret",
    ),
    Mutant(
        "net/client/examples_ledger.py",
        "        kind = self.options.noise, self._rate\n",
        "        self._steps, kind = {}, (self.options.noise, self._rate)\n",
        "tests/net/client/test_examples_ledger.py",
        "privacy of examples: what was charged before counts",
    ),
    Mutant(
        "local/examples_privacy.py",
        "self._noise.seek(step * len(self._parameters))",
        "self._noise.seek(0)",
        "tests/local/test_examples_privacy.py",
        "privacy of examples: each step has its own noise",
    ),
    Mutant(
        "local/examples_privacy.py",
        "    if written:\n",
        "    if False:\n",
        "tests/local/test_examples_privacy.py",
        "privacy of examples: nothing is kept in buffers",
    ),
    Mutant(
        "secure/helper_file.py",
        'seal(database, "released", [task for task, *_ in rows])',
        "pass",
        "tests/secure/test_helper.py",
        "a helper's releases have checksums",
    ),
    Mutant(
        "net/server/release_seeds.py",
        "seal(database, table, [version for version, *_ in rows])",
        "pass",
        "tests/net/server/test_private_server.py",
        "the seeds of noise have checksums",
    ),
    Mutant(
        "net/client/store.py",
        "if task <= newest_task:",
        "if False:",
        "tests/net/test_what_leaves_a_site.py",
        "the tasks of a site have rising numbers",
    ),
]


def caught(mutant: Mutant, copy: Path) -> bool:
    """Do the tests fail with this change in the copy of the package?"""
    path = copy / "offbeat" / mutant.file
    text = path.read_text("utf-8")
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.file} has {text.count(mutant.old)} times, not once: {mutant.old!r}")
    path.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *mutant.tests.split()],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(text, "utf-8")
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.returncode == 1


def main(words: list[str]) -> int:
    """Print one line for each mutant; returns 1 if one survives."""
    chosen = [m for m in MUTANTS if not words or any(word in f"{m.file} {m.rule}" for word in words)]
    survived = 0
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        shutil.copytree(SOURCE / "offbeat", copy / "offbeat", ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in chosen:
            found = caught(mutant, copy)
            survived += not found
            print(f"{'caught  ' if found else 'SURVIVED'}  {mutant.file}: {mutant.rule}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} caught")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
