"""A federation of real processes that are killed over and over; counts what became of its updates.

    python benchmarks/faults.py [--algorithm fedbuff] [--kills 50] [--sites 20] [--seed 1] [--secure]

One server (`offbeat serve`), the sites in a few processes, and between them a relay that drops, delays and
swallows. The server is killed (SIGKILL) at random moments, while it starts too, and started again on the same
directory and port; the sites' processes are killed and started again, and paused for longer than the lease.
Now and then the server may write only small files for a while, as on a full disk, until it gives up.
With `--hostile` so many sites send updates that make the loss collapse, the guard against them is off, and
the run goes back to its last good version again and again while it is killed.
With `--secure` updates are masked for three helpers, processes that are killed as well. The sites keep what
they mask in clear, and round it as follows from the task, so that the sums can be made again.
Each site writes every acknowledgement to disk before it goes on. When all kills are done the run is let reach
a number of versions. Then every acknowledged update must be in the journal, once; no update may be in two
aggregations; a replay must agree; and the journal's updates, taken in once more from the sites' own copies,
must give the bytes of model.safetensors. Exit status 1 if any of it is not so.
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
import torch
import yaml
from bad_network import relay
from processes import call_offbeat, ended, fork, has_ended, kill, leave_when_told
from safetensors.torch import load_file
from witness import ACKNOWLEDGED, END, SENT, help_out, read_tasks, rounding_of, take_part

from offbeat.algorithms.private import with_privacy
from offbeat.core.engine import Engine
from offbeat.core.events import Arrived, Released, Releasing
from offbeat.core.global_model import GlobalModel
from offbeat.core.journal import Row, event_of
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.releases import ReleasePlan, Releases, ReleaseSeeds
from offbeat.core.sums import Integers
from offbeat.net.run_spec import read_run_spec
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.learner import server_learner
from offbeat.net.server.options import ServerOptions
from offbeat.runs.record import RunRecord, read_run

PROCESSES, LAST_VERSIONS = 4, 10
HELPERS = ("anna", "bert", "cleo")
ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedbuff": {"name": "fedbuff", "steps": 5, "size": 4},
    "fedcompass": {"name": "fedcompass", "q_min": 4, "q_max": 16},
    "fedasync": {"name": "fedasync", "steps": 5},
    "port": {"name": "port", "epochs": 2, "size": 4, "tau_max": 3, "urgent": True},
    "fedasmu": {"name": "fedasmu", "epochs": 2, "size": 4, "period": 1.0, "threshold": 4},
}


@dataclass
class Counts:
    """What was done to the processes."""

    kills: int = 0
    early: int = 0
    pauses: int = 0
    site_kills: int = 0
    site_pauses: int = 0
    helper_kills: int = 0
    died: int = 0
    full: int = 0
    recovery: list[float] = field(default_factory=list)


class Storm:
    """A server, its sites and the relay between them."""

    def __init__(
        self,
        directory: Path,
        recipe: dict[str, Any],
        seed: int,
        pace: float,
        full: float,
        lease: float,
        hostile: int = 0,
    ) -> None:
        self.directory, self.sites, self.pace = directory, recipe["clients"], pace
        self.hostile = [f"site-{i}" for i in range(hostile)]
        self.chance, self.counts = Random(seed), Counts()
        self.state, self.logs = directory / "state", directory / "sites"
        self.recipe = directory / "recipe.yaml"
        self.recipe.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        self.port = 0
        self.server = self.network = 0
        self.relay_port = 0
        self.processes: list[int] = []
        self.secure, self.helpers = "privacy" in recipe, dict[str, int]()
        self.room: int | None = None
        self.starts, self.full, self.lease = 0, full, lease
        self.paused: dict[int, float] = {}  # a process's place, and when it goes on
        self.logs.mkdir()

    # ---- starting ----

    def start_server(self, versions: int = 10**6, room: int | None = None) -> None:
        """Start the server, on the port it had before. With `room` no file may have more bytes than that."""
        words = [
            "serve", str(self.recipe), "--state", str(self.state), "--listen", f"127.0.0.1:{self.port}",
            "--lease", str(self.lease), "--log", "json", "--set", f"until.versions={versions}",
            "--unmask-timeout", "3",
        ]  # fmt: skip

        def work() -> None:
            if room is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
            call_offbeat(words)

        self.room, self.starts = room, self.starts + 1
        self.server = fork(work, self.directory / f"server-{self.starts}.log")

    def await_server(self) -> float:
        """Wait until it listens; returns how many seconds that took. Starts it again if it ends instead."""
        begun = time.monotonic()
        while not self._announced():
            if (status := ended(self.server)) is not None:
                self._count_end(status)
                if self.counts.died > 20:
                    raise RuntimeError(f"the server ends with {status}: see {self.directory}")
                time.sleep(0.2)
                self.start_server()
            time.sleep(0.01)
        return time.monotonic() - begun

    def _count_end(self, status: int) -> None:
        """The server has ended without being killed, as it may where it has no room."""
        if self.room is not None and status == 1:
            self.counts.full += 1
        else:
            self.counts.died += 1

    def _announced(self) -> bool:
        try:
            told = json.loads((self.state / "server.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        if told["pid"] != self.server:
            return False
        self.port = int(told["address"].rpartition(":")[2])
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def start_network(self) -> None:
        """Start the relay and wait for its port."""
        told, port, seed = self.directory / "relay.json", self.port, self.chance.randrange(1 << 30)
        self.network = fork(lambda: asyncio.run(relay(port, seed, told)), self.directory / "relay.log")
        while not told.exists():
            time.sleep(0.01)
        self.relay_port = json.loads(told.read_text(encoding="utf-8"))["port"]

    def start_sites(self, place: int) -> int:
        """Start one of the sites' processes."""
        names = [f"site-{i}" for i in range(self.sites) if i % PROCESSES == place]
        address = f"127.0.0.1:{self.relay_port}"
        return fork(
            lambda: take_part(address, names, self.sites, self.logs, self.pace, self.hostile, self.secure),
            self.directory / f"sites-{place}.log",
        )

    def start_helper(self, name: str) -> None:
        """Start a helper."""
        address, state = f"127.0.0.1:{self.relay_port}", self.directory / name
        self.helpers[name] = fork(
            lambda: help_out(address, name, state), self.directory / f"helper-{name}.log"
        )

    def _kill_a_helper(self) -> None:
        name = self.chance.choice(HELPERS)
        kill(self.helpers[name])
        self.counts.helper_kills += 1
        self.start_helper(name)

    # ---- the storm ----

    def blow(self, kills: int) -> None:
        """Kill the server so many times, and what else."""
        while self.counts.kills < kills:
            if self.chance.random() < 0.2:  # while it starts
                time.sleep(self.chance.uniform(0.0, 1.2 * median(self.counts.recovery or [1.0])))
                self.counts.early += not self._announced()
            else:
                self.counts.recovery.append(self.await_server())
                self._hurt_sites()
                self._run_for(self.chance.uniform(0.1, 6.0))
            if (status := ended(self.server)) is not None:
                self._count_end(status)
            else:
                kill(self.server)
                self.counts.kills += 1
            self.start_server(room=self._room())

    def _room(self) -> int | None:
        """How large files may be now: mostly as large as they like."""
        if self.chance.random() >= self.full:
            return None
        database = (self.state / "run.db").stat().st_size if (self.state / "run.db").exists() else 0
        return self.chance.choice((2000, 1 << 15, 1 << 17, database + (1 << 12), database + (1 << 16)))

    def _run_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        if self.chance.random() < 0.1:
            os.kill(self.server, signal.SIGSTOP)
            time.sleep(seconds / 2)
            os.kill(self.server, signal.SIGCONT)
            self.counts.pauses += 1
        next_kill = time.monotonic() + self.chance.uniform(0.1, 3.0)
        while time.monotonic() < until and not has_ended(self.server):
            if self.secure and time.monotonic() > next_kill:
                self._kill_a_helper()
                next_kill = time.monotonic() + self.chance.uniform(0.1, 3.0)
            self._continue_sites()
            time.sleep(0.005)

    def _hurt_sites(self) -> None:
        """Kill one of the sites' processes and start it again, or pause it for longer than the lease."""
        draw, place = self.chance.random(), self.chance.randrange(PROCESSES)
        if place in self.paused:
            return
        if draw < 0.25:
            kill(self.processes[place])
            self.processes[place] = self.start_sites(place)
            self.counts.site_kills += 1
        elif draw < 0.4:
            os.kill(self.processes[place], signal.SIGSTOP)
            self.paused[place] = time.monotonic() + self.lease * self.chance.uniform(0.2, 1.8)
            self.counts.site_pauses += 1

    def _continue_sites(self, all_of_them: bool = False) -> None:
        for place, until in list(self.paused.items()):
            if all_of_them or time.monotonic() > until:
                os.kill(self.processes[place], signal.SIGCONT)
                del self.paused[place]

    # ---- the end ----

    def calm(self, patience: float) -> None:
        """Let the run reach some more versions, and the sites hear of its end."""
        self._continue_sites(all_of_them=True)
        self.counts.recovery.append(self.await_server())
        kill(self.server)  # once more: from now on it has an end
        self.counts.kills += 1
        versions = max([row.version or 0 for row in read_run(self.state).rows("command")], default=0)
        self.start_server(versions + LAST_VERSIONS)
        deadline = time.monotonic() + patience
        while (status := ended(self.server)) is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the run did not end within {patience:g} s")
            time.sleep(0.05)
        if status:
            raise RuntimeError(f"the server ended with {status}: see {self.directory}")

    def close(self) -> None:
        """End all processes."""
        for process in (self.server, *self.processes, *self.helpers.values()):
            if process:
                kill(process)
        if self.network:
            with suppress(ProcessLookupError):
                os.kill(self.network, signal.SIGTERM)
            with suppress(ChildProcessError):
                os.waitpid(self.network, 0)


def recipe(algorithm: str, sites: int, seed: int, hidden: int, hostile: int, secure: bool) -> dict[str, Any]:
    """A tiny model on few samples, or an MLP with so many hidden units. All is believed of hostile sites."""
    return {
        "clients": sites,
        "data": {"dataset": "digits", "samples": 200, "test_samples": 100},
        "model": {"name": "mlp", "hidden": [hidden]} if hidden else {"name": "logistic"},
        "training": {"optimizer": "sgd", "lr": 0.05, "batch_size": 20},
        "algorithm": ALGORITHMS[algorithm],
        "until": {"versions": 10**6},
        "evaluate": {"versions": 1} if hostile else {"seconds": 5.0},
        "seed": seed,
        **({"guard": False} if hostile else {}),
        **({"privacy": {"clip": 1.0, "secure": {"helpers": list(HELPERS)}}} if secure else {}),
    }


# ---- what became of the updates ----


@dataclass(frozen=True)
class Findings:
    """What the sites' logs and the journal say of each other; `wrong` lists what must not be."""

    rows: int
    versions: int
    rollbacks: int
    sent_again: int
    acknowledged: int
    acknowledged_again: int
    arrived: int
    lost: int
    twice: int
    aggregated_twice: int
    wrong: list[str]
    redone: str
    releases: str


def examine(state: Path, logs: Path) -> Findings:
    """Compare the sites' logs with the journal."""
    record = read_run(state)
    rows, names = list(record.rows()), record.site_names()
    arrived = Counter((names[row.client or 0], row.task) for row in rows if row.name == "arrived")
    logged = read_tasks(logs, ACKNOWLEDGED)
    acknowledged = {(site, task): times for site, tasks in logged.items() for task, times in tasks.items()}
    sent = [times for tasks in read_tasks(logs, SENT).values() for times in tasks.values()]
    taken = Counter(task for row in rows if row.name == "aggregate" for task in (row.data or {})["tasks"])
    lost = [key for key in acknowledged if key not in arrived]
    twice = [key for key, times in arrived.items() if times > 1]
    taken_twice = [task for task, times in taken.items() if times > 1]
    must_be_none = {"acknowledged and lost": lost, "arrived twice": twice, "aggregated twice": taken_twice}
    wrong = [f"{what}: {found[:10]}" for what, found in must_be_none.items() if found]
    if record.status != "finished":
        wrong.append(f"the run is {record.status}")
    left = sorted(p.name for p in state.glob("*.safetensors"))
    if left != ["model.safetensors"]:
        wrong.append(f"files are left: {left}")
    summed = Counter(task for row in rows if row.name == "releasing" for task in (row.data or {})["tasks"])
    if in_two := [task for task, times in summed.items() if times > 1]:
        wrong.append(f"in two manifests: {in_two[:10]}")
    released = [row.data or {} for row in rows if row.name == "released"]
    failed = [data["reason"] for data in released if data["reason"]]
    redone = redo(record, rows, logs / "updates")
    if redone.startswith("other"):
        wrong.append(f"the model of the journal is {redone}")
    return Findings(
        rows=len(rows),
        versions=max((row.version or 0 for row in rows), default=0),
        rollbacks=sum(row.name == "rolled_back" for row in rows),
        sent_again=sum(sent) - len(sent),
        acknowledged=len(acknowledged),
        acknowledged_again=sum(acknowledged.values()) - len(acknowledged),
        arrived=sum(arrived.values()),
        lost=len(lost),
        twice=len(twice),
        aggregated_twice=len(taken_twice),
        wrong=wrong,
        redone=redone,
        releases=f"{len(released)}, of them failed: {len(failed)}",
    )


def redo(record: RunRecord, rows: list[Row], updates: Path) -> str:
    """Take the journal's updates in once more, from the sites' copies, and compare with the final model."""
    if "privacy" in record.meta:
        return redo_sums(record, rows, updates)
    spec = read_run_spec(record.meta["plan"])
    learner = server_learner(spec.model, spec.training, None, spec.sample_shape, spec.classes)
    info = RunInfo("again", {}, spec.seed, spec.classes, spec.training.batch_size)
    options = ServerOptions(clients=record.clients, guard=None)
    versions: dict[int, Model] = {}
    coordinator = Coordinator(spec.make_algorithm(), learner.initial(spec.seed), options, info)
    for client, name in record.site_names().items():
        coordinator.registry.add(name, client)
    unsure = 0

    def load(event: Arrived) -> LocalResult:
        nonlocal unsure
        versions[coordinator.tensors.version] = coordinator.tensors.model
        paths = sorted(updates.glob(f"{event.task}-*.safetensors"))
        unsure += len(paths) > 1
        saved = {name: tensor.clone() for name, tensor in load_file(paths[0]).items()}
        return LocalResult(
            saved["delta"], saved["integers"], event.metrics, float(saved["lr"][0]), saved.get("shared")
        )

    coordinator.replay(rows, load, versions.__getitem__)
    if unsure:
        return f"not compared: {unsure} tasks were trained twice, with another outcome"
    found = load_file(record.path / "model.safetensors")
    made = coordinator.tensors.model.state_dict()
    same = found.keys() == made.keys() and all(torch.equal(found[name], made[name]) for name in found)
    return "the same bytes" if same else "other bytes than model.safetensors"


def redo_sums(record: RunRecord, rows: list[Row], updates: Path) -> str:
    """The same for masked updates: their sums are made again from what the sites have masked."""
    spec, plan = read_run_spec(record.meta["plan"]), ReleasePlan.read(record.meta["privacy"])
    learner = server_learner(spec.model, spec.training, None, spec.sample_shape, spec.classes)
    algorithm, unsure, tasks = spec.make_algorithm(), 0, dict[int, int]()
    releases = Releases(plan, ReleaseSeeds(lambda _: b"", lambda _, __: b""), masked=True)
    tensors = GlobalModel(algorithm, learner.initial(spec.seed), releases=releases)
    schedule = with_privacy(algorithm, plan.privacy).schedule
    engine = Engine(schedule, spec.seed, lambda _: None, tensors)

    def rounded(task: int) -> Integers:
        nonlocal unsure
        paths = sorted(updates.glob(f"{task}-*.safetensors"))
        unsure += len(paths) > 1
        return plan.grid.round(load_file(paths[0])["delta"][: plan.parameters].numpy(), rounding_of(task))

    for row in rows:
        if row.kind != "event":
            continue
        event, result = event_of(row), None
        if isinstance(event, Releasing):
            tasks = dict(zip(event.tasks, event.weights, strict=True))
        if isinstance(event, Released) and not event.reason:
            total = np.zeros(plan.parameters, np.int64)
            for task, weight in tasks.items():
                total += weight * rounded(task)
            releases.sums[event.version] = total
        if isinstance(event, Arrived):
            base = tensors.bases[event.task][1]
            result = LocalResult(torch.zeros(0), base.integers, {}, 0.05)
        engine.apply(row.t, event, result)
    if unsure:
        return f"not compared: {unsure} tasks were trained twice, with another outcome"
    found = load_file(record.path / "model.safetensors")
    made = tensors.model.state_dict()
    same = found.keys() == made.keys() and all(torch.equal(found[name], made[name]) for name in found)
    return "the same bytes" if same else "other bytes than model.safetensors"


def replayed(state: Path, log: Path) -> bool:
    """Does `offbeat replay` agree?"""
    process = fork(lambda: call_offbeat(["replay", str(state)]), log)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def report(storm: Storm, findings: Findings, replay: bool) -> None:
    """Print the counts."""
    c, f = storm.counts, findings
    ends = [path.read_text(encoding="utf-8") for path in sorted(storm.logs.glob(f"*/{END}"))]
    relayed = json.loads((storm.directory / "relay.json").read_text(encoding="utf-8")).get("counts", {})
    table = {
        "server killed": f"{c.kills} (of them {c.early} while it started)",
        "server paused": c.pauses,
        "server ended by itself": c.died,
        "server gave up on a full disk": c.full,
        "tracebacks in the server's logs": tracebacks(storm.directory),
        "sites' processes killed": c.site_kills,
        "sites' processes paused": c.site_pauses,
        "helpers killed": c.helper_kills,
        "releases": f.releases,
        "connections": ", ".join(f"{count} {fate}" for fate, count in sorted(relayed.items())),
        "seconds to come back (median, most)": f"{median(c.recovery):.2f}, {max(c.recovery):.2f}",
        "versions": f.versions,
        "returns to an earlier version": f.rollbacks,
        "journal rows": f.rows,
        "updates sent again": f.sent_again,
        "acknowledged": f.acknowledged,
        "acknowledged again": f.acknowledged_again,
        "arrived, in the journal": f.arrived,
        "acknowledged and lost": f.lost,
        "arrived twice": f.twice,
        "aggregated twice": f.aggregated_twice,
        "sites that heard of the end": f"{len(ends)} of {storm.sites}",
        "replay": "identical" if replay else "DIFFERS",
        "model made again from the journal": f.redone,
    }
    for name, value in table.items():
        print(f"{name:36} {value}", flush=True)
    for line in {end for end in ends if not end.startswith("reached")}:
        print(f"a site ended with: {line}")


def tracebacks(directory: Path) -> int:
    """How many there are."""
    logs = directory.glob("server-*.log")
    return sum(path.read_text(encoding="utf-8", errors="replace").count("Traceback") for path in logs)


def main() -> int:
    parser = argparse.ArgumentParser(description="kill a federation over and over, and count")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="fedbuff")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds that a local step takes at least")
    parser.add_argument("--hidden", type=int, default=0, help="from 900 on an update is not a small one")
    parser.add_argument("--hostile", type=int, default=0, help="how many sites send absurd updates")
    parser.add_argument("--secure", action="store_true", help="updates are masked for three helpers")
    parser.add_argument("--full", type=float, default=0.1, help="how likely it starts on a full disk")
    parser.add_argument("--lease", type=float, default=6.0, help="of the sites; longer on a busy machine")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for the end to come")
    parser.add_argument("--directory", type=Path, help="where to work; it is kept")
    chosen = parser.parse_args()
    leave_when_told()
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="offbeat-faults-"))
    directory.mkdir(parents=True, exist_ok=True)
    experiment = recipe(
        chosen.algorithm, chosen.sites, chosen.seed, chosen.hidden, chosen.hostile, chosen.secure
    )
    storm = Storm(directory, experiment, chosen.seed, chosen.pace, chosen.full, chosen.lease, chosen.hostile)
    try:
        storm.start_server()
        storm.await_server()
        storm.start_network()
        for name in HELPERS if storm.secure else ():
            storm.start_helper(name)
        storm.processes = [storm.start_sites(place) for place in range(PROCESSES)]
        storm.blow(chosen.kills - 1)
        storm.calm(chosen.patience)
        time.sleep(1.0)
    finally:
        storm.close()
    findings = examine(storm.state, storm.logs)
    same = replayed(storm.state, directory / "replay.log")
    report(storm, findings, same)
    for line in findings.wrong:
        print(f"WRONG: {line}")
    print(f"in {directory}")
    return 0 if same and not findings.wrong else 1


if __name__ == "__main__":
    sys.exit(main())
