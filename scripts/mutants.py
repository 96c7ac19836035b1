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
COLLAPSE = "tests/net/server/test_collapse.py"

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
        "task.population = self.fleet.size",
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
        "data/dataset.py",
        "part[:, [own.index(n) for n in wanted]]",
        "part[:, [wanted.index(n) for n in own]]",
        "tests/data/test_column_order.py",
        "columns follow the wanted names",
    ),
    Mutant(
        "data/columns.py",
        "ordered[name] = parts[name].loc[wanted]",
        "ordered[name] = parts[name]",
        "tests/data/test_column_order.py",
        "rows of targets follow the index of the inputs",
    ),
    Mutant(
        "net/client/site.py",
        "self.data.with_columns(columns))",
        "self.data)",
        "tests/net/client/test_site.py",
        "a site puts its columns in the order of the run's",
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
        "algorithms/first_of.py",
        "ceil(round(self.share * clients, 9))",
        "ceil(self.share * clients)",
        ALGORITHMS,
        "the first k of n: 0.07 of 100 clients are 7",
    ),
    Mutant(
        "algorithms/first_of.py",
        "            case Lost() | Left():\n",
        "            case Lost():\n",
        f"{ALGORITHMS} tests/properties",
        "the first k of n: a round does not wait for who left",
    ),
    Mutant(
        "algorithms/first_of.py",
        "case Arrived() if state.first <= event.task < state.end:",
        'case Arrived() if state.first <= event.task or self.late == "next":',
        PAPERS,
        "the first k of n: a late update does not count toward k",
    ),
    Mutant(
        "algorithms/first_of.py",
        "state.closing = min(state.closing, self.least)",
        "state.closing = 1",
        PAPERS,
        "the first k of n: the window closes a round with the least number or more",
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
        "            if is_after(g.T_a, now):\n",
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
        "net/secure/release_seeds.py",
        "seal(database, table, [version for version, *_ in rows])",
        "pass",
        "tests/net/server/test_private_server.py",
        "the seeds of noise have checksums",
    ),
    Mutant(
        "net/client/known_runs.py",
        "if task < before.task or",
        "if False or",
        "tests/net/test_what_leaves_a_site.py",
        "the tasks of a site have rising numbers",
    ),
    Mutant(
        "algorithms/fedcompass.py",
        "q, g = max(fits)",
        "q, g = max(fits, key=lambda fit: (fit[0], -fit[1]))",
        f"{ALGORITHMS}/test_compass_cases.py",
        "FedCompass joins the later of two groups with equal steps",
    ),
    Mutant(
        "algorithms/fedcompass.py",
        "(*g.expected, *g.waiting)",
        "g.expected",
        f"{ALGORITHMS}/test_compass_cases.py",
        "FedCompass: the fastest client of a group may have arrived",
    ),
    Mutant(
        "algorithms/fedcompass.py",
        "if is_after(g.T_a, now):",
        "if not is_after(now, g.T_a):",
        f"{ALGORITHMS}/test_compass_cases.py",
        "FedCompass aims at groups before T_a, and not at it",
    ),
    Mutant(
        "algorithms/fedasmu/requests.py",
        "best = max(values.get((ask, a), 0.0)",
        "best = max(values.get((before, a), 0.0)",
        f"{ALGORITHMS}/test_fedasmu_request.py",
        "FedASMU's Q-learning: the best value of the next epoch",
    ),
    Mutant(
        "core/privacy/sums.py",
        "return sqrt(c * c + self.parameters / 4 + c + sqrt(self.parameters) / 2)",
        "return sqrt(c * c + self.parameters / 4)",
        f"{CORE}/privacy/test_sums.py",
        "the bound of a rounded update",
    ),
    Mutant(
        "algorithms/privacy/pooled.py",
        "max(weights) <= self.privacy.dominance",
        "max(weights) < self.privacy.dominance",
        f"{ALGORITHMS}/privacy/test_pooled.py",
        "an update may have all of the weight that one may have",
    ),
    Mutant(
        "algorithms/compass_times.py",
        "return time > other * (1 + RESOLUTION)",
        "return time > other",
        f"{ALGORITHMS}/test_compass_times.py",
        "FedCompass: what arrives at the instant T_max is on time",
    ),
    Mutant(
        "algorithms/compass_times.py",
        "return next(same, time)",
        "return time",
        f"{ALGORITHMS}/test_compass_times.py",
        "FedCompass: timers of one instant have one time",
    ),
    Mutant(
        "algorithms/compass_times.py",
        "key=lambda client: (ends[client], client)",
        "key=lambda client: (seconds[client], client)",
        f"{ALGORITHMS}/test_compass_times.py",
        "FedCompass: equally fast members by their numbers",
    ),
    Mutant(
        "sim/queue.py",
        "self.time <= together[0][0] * (1 + self._resolution)",
        "self.time <= together[0][0]",
        "tests/sim/test_event_order.py",
        "times that differ by rounding are one instant",
    ),
    Mutant(
        "core/server.py",
        "if not 0 <= ask < steps:",
        "if not 0 <= ask <= steps:",
        f"{CORE}/test_server.py",
        "a client asks for a model before its last step",
    ),
    Mutant(
        "core/server.py",
        "self.timers.pop(command.timer, None)\n                self.timers[command.timer]",
        "self.timers[command.timer]",
        "tests/net/server/test_coordinator.py",
        "a timer that is set again fires after the others of its time",
    ),
    Mutant(
        "core/fleet.py",
        "        self.total_samples -= self._samples[client]\n",
        "",
        f"{CORE}/test_fleet.py",
        "shares are of the samples of the clients that are there",
    ),
    Mutant(
        "core/privacy/accounting.py",
        "exp(min(0.0, epsilon + second))",
        "exp(min(0.0, second))",
        f"{CORE}/privacy/test_accounting.py",
        "δ of Gaussian privacy",
    ),
    Mutant(
        "core/privacy/accounting.py",
        "(1 - 1 / (2 * k))",
        "(1 - 1 / (2 * k + 1))",
        f"{CORE}/privacy/test_accounting.py",
        "the coefficients of noise in bands",
    ),
    Mutant(
        "core/privacy/accounting.py",
        "squared = releases * h[0] + 2 * sum(",
        "squared = releases * h[0] + sum(",
        f"{CORE}/privacy/test_accounting.py",
        "the noise multiplier of a number of releases in bands",
    ),
    Mutant(
        "core/privacy/accounting.py",
        "+ 2 * alpha * past",
        "+ alpha * past",
        f"{CORE}/privacy/test_accounting.py",
        "what a release costs beside those before it in bands",
    ),
    Mutant(
        "core/privacy/accounting.py",
        "if release - r < bands - 1}",
        "if release - r < bands - 2}",
        f"{CORE}/privacy/test_accounting.py",
        "releases of the last bands count",
    ),
    Mutant(
        "core/privacy/sums.py",
        "return y if squared <= self.bound**2 else None",
        "return y",
        f"{CORE}/privacy/test_sums.py",
        "a rounded update whose norm is above the bound is rounded again",
    ),
    Mutant(
        "core/privacy/sums.py",
        "(_TOP - self.weight * (1 + self.largest_dither))",
        "_TOP",
        f"{CORE}/privacy/test_sums.py",
        "no sum overflows, whatever the dither",
    ),
    Mutant(
        "core/privacy/noise.py",
        "kept &= ~(negative & (y == 0))",
        "kept &= ~(negative & (y < 0))",
        f"{CORE}/privacy/test_noise.py",
        "noise of zero is drawn once, and not with both signs",
    ),
    Mutant(
        "core/privacy/noise.py",
        "noise -= factor * earlier",
        "noise += factor * earlier",
        f"{CORE}/privacy/test_noise.py",
        "noise in bands takes earlier noise back",
    ),
    Mutant(
        "core/privacy/releases.py",
        "if own.squared >= self._busiest.squared:",
        "if True:",
        f"{CORE}/privacy/test_releases.py",
        "the privacy that is told is that of the busiest client",
    ),
    Mutant(
        "core/privacy/releases.py",
        "if delta * clients >= 1 else None",
        "if delta * clients > 1 else None",
        f"{CORE}/privacy/test_releases.py",
        "δ is below 1 / number of clients",
    ),
    Mutant(
        "core/privacy/privacy_options.py",
        "return -(-samples // unit) * unit",
        "return samples // unit * unit",
        "tests/sim/test_privacy.py",
        "numbers of samples are rounded up",
    ),
    Mutant(
        "core/privacy/privacy_options.py",
        "needed = self.colluding_clients + 2",
        "needed = self.colluding_clients + 1",
        "tests/algorithms/privacy/test_privacy_refusals.py",
        "a release has two updates that colluding clients do not know",
    ),
    Mutant(
        "secure/committee.py",
        "if weight > self.dominance * total:",
        "if weight >= self.dominance * total:",
        "tests/secure/test_committee.py",
        "helpers allow an update all of the weight that one may have",
    ),
    Mutant(
        "secure/masks.py",
        "np.uint32(weight % 2**32) for",
        "np.uint32(1) for",
        "tests/secure/test_masks.py",
        "masks are added with their weights",
    ),
    Mutant(
        "secure/masks.py",
        "bound = (committee.digest, task, client, site, helper)",
        "bound = (committee.digest, task, client, helper)",
        "tests/secure/test_masks.py",
        "a box opens for its site alone",
    ),
    Mutant(
        "net/backoff.py",
        "2.0 ** min(attempt, 32)",
        "2.0 * min(attempt, 32)",
        "tests/net/test_backoff.py",
        "delays double",
    ),
    Mutant(
        "net/failed_logins.py",
        "times[0] + SECONDS",
        "times[-1] + SECONDS",
        "tests/net/test_failed_logins.py",
        "an address waits until its first failure is old enough",
    ),
    Mutant(
        "net/server/deadlines.py",
        "max(task.started, self.since)",
        "task.started",
        "tests/net/server/test_deadlines.py",
        "time without the server counts for no deadline",
    ),
    Mutant(
        "verdicts/family.py",
        "differ = false_discovery([side.two_sided for side in sides])",
        "differ = [side.two_sided for side in sides]",
        "tests/verdicts",
        "the more claims, the more a verdict asks of each",
    ),
    Mutant(
        "verdicts/family.py",
        "for seeds, level in levels.items() if seeds <= self.complete}",
        "for seeds, level in levels.items() if level and self.complete}",
        "tests/verdicts",
        "a look counts when all pairs have all of its runs",
    ),
    Mutant(
        "report/headline.py",
        "return range(first, first + planned)",
        "return range(first, first + len(runs))",
        "tests/report/test_headline.py",
        "the recipe's seeds say when differences are judged",
    ),
    Mutant(
        "net/server/deadlines.py",
        "or task.id != number or task.hold or",
        "or task.id != number or",
        "tests/net/server/test_deadlines.py",
        "an update that its site holds has no deadline",
    ),
    Mutant(
        "net/wire/rate_limit.py",
        "self._level = min(self._full, self._level + (now - self._at) * self._rate) - units",
        "self._level = self._level + (now - self._at) * self._rate - units",
        "tests/net/wire/test_rate_limit.py",
        "a rate limit allows ten seconds' worth at once, after any silence",
    ),
    Mutant(
        "net/wire/reader.py",
        "if body.checksum.intdigest() != checksum:",
        "if False:",
        "tests/net/wire/test_reader.py",
        "a chunk has the right checksum",
    ),
    Mutant(
        "net/auth/tokens.py",
        "nobody = [TokenProof(name, _NOBODY)] * _AT_ONCE",
        "nobody = list[TokenProof]()",
        "tests/net/auth/test_tokens.py",
        "known and unknown names cost the same work",
    ),
    Mutant(
        "net/server/coordinator.py",
        "if now - self._ticked > lease / 2:",
        "if False:",
        "tests/net/server/test_coordinator.py",
        "time without the server ends no lease",
    ),
    Mutant(
        "net/server/coordinator.py",
        "self.now = max(now, self.now, self.server.now)",
        "self.now = now",
        "tests/net/server/test_coordinator.py",
        "time never goes back",
    ),
    Mutant(
        "net/server/coordinator.py",
        "sorted(due, key=itemgetter(1))",
        "sorted(due)",
        "tests/net/server/test_coordinator.py",
        "timers fire by their time",
    ),
    Mutant(
        "net/secure/release_seeds.py",
        "elif found is not None and found.tasks == release.tasks:",
        "elif found is not None:",
        "tests/net/secure/test_release_seeds.py",
        "a seed is never used for other updates",
    ),
    Mutant(
        "core/server.py",
        "self.lost = {task.client: replace(task) for task in saved.lost}",
        "self.lost = {}",
        "tests/net/server/test_recovery_snapshot.py",
        "a restored server knows the tasks that clients may bring back",
    ),
    Mutant(
        "core/fleet.py",
        'array("q", saved.idle), array("q", [-1]',
        'array("q", sorted(saved.idle)), array("q", [-1]',
        "tests/net/server/test_recovery_snapshot.py",
        "the order of the idle clients is restored: draws depend on it",
    ),
    Mutant(
        "core/privacy/releases.py",
        "self._busiest = Spent() if saved.busiest is None else self._spent[saved.busiest]",
        "self._busiest = Spent()",
        "tests/net/server/test_recovery_snapshot.py",
        "the client that has spent the most is one of the restored",
    ),
    Mutant(
        "net/server/recovery_snapshot.py",
        "if not checksum == _checksum(rows, code, data) == recorded[0]:",
        "if False:",
        "tests/net/server/test_recovery_snapshot.py",
        "a damaged snapshot is not read",
    ),
    Mutant(
        "net/server/lazy_heap.py",
        "elif time > entry_time:",
        "elif False:",
        "tests/net/server/test_due_times.py",
        "a time that has moved is not due at its old one",
    ),
    Mutant(
        "net/server/deadlines.py",
        "if rises:",
        "if False:",
        "tests/net/server/test_due_times.py",
        "deadlines of first tasks follow a slowest speed that rises",
    ),
    Mutant(
        "runs/archive.py",
        "bounds = (last, kept, None if checkpoint is None else checkpoint.journal)",
        "bounds = (last, kept)",
        "tests/runs/test_archive.py",
        "rows after the checkpoint are not archived",
    ),
    Mutant(
        "net/client/policy.py",
        "if (given := getattr(noise.budget, name)) is None or given > most:",
        "if (given := getattr(noise.budget, name)) is not None and given > most:",
        "tests/net/client/test_policy.py",
        "a policy with a largest ε refuses a run without a budget",
    ),
    Mutant(
        "core/guard.py",
        "if len(absurd) == len(own) and not",
        "if absurd and not",
        CORE,
        "a step is refused where its norm and that by its number of updates are absurd",
    ),
    Mutant(
        "core/guard.py",
        'f"{name} per update": norm / len(updates)}',
        'f"{name} per update": norm}',
        CORE,
        "a step of many clients goes farther than one of a single client",
    ),
    Mutant(
        "net/server/collapse.py",
        "sorted(list(self.recent)[-WINDOW:])[WINDOW // 2]",
        "min(list(self.recent)[-WINDOW:])",
        COLLAPSE,
        "a gain is of medians, and not of one lucky loss",
    ),
    Mutant(
        "net/server/collapse.py",
        "counts=self._losses.gained(loss, GROWN))",
        "counts=True)",
        COLLAPSE,
        "a metric gains nothing while the loss is high",
    ),
    Mutant(
        "net/server/collapse.py",
        "2 * sum(found.values()) > len(found)",
        "any(found.values())",
        COLLAPSE,
        "of several metrics most must have kept their gains",
    ),
    Mutant(
        "net/server/collapse.py",
        "self._losses.has_lost() and self._slowly_kept() is False",
        "self._losses.has_lost() and self._slowly_kept() is not True",
        COLLAPSE,
        "a loss alone that rises slowly is a warning",
    ),
    Mutant(
        "net/server/collapse.py",
        " and not name.startswith(CLIENTS)",
        "",
        COLLAPSE,
        "what clients measure excuses nothing",
    ),
    Mutant(
        "world/partitions.py",
        "rng.dirichlet(self.alpha2 * sizes / sizes.sum(), size=clients)",
        "rng.dirichlet(np.full(len(sizes), self.alpha2 / len(sizes)), size=clients)",
        "tests/world/test_partitions.py",
        "the class shares of a client follow the sizes of the classes",
    ),
    Mutant(
        "algorithms/fedasmu/requests.py",
        "ask = min(max(before + action, 1), epochs - 1)",
        "ask = max(before + action, 1)",
        "tests/algorithms/test_fedasmu_request.py",
        "a device asks before its last epoch",
    ),
    Mutant(
        "algorithms/fedasmu/requests.py",
        "before = min(state.last[client][2], epochs - 1)",
        "before = state.last[client][2]",
        "tests/algorithms/test_fedasmu_request.py",
        "a shorter task begins from its own last epoch",
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
