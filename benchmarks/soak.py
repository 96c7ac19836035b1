"""A soak: a server and a few sites as real processes, very many small updates; does anything grow?

    python benchmarks/soak.py --out DIR [--updates 100000] [--sites 3] [--stop-every 50000]

The processes are those of the command line, with TLS and kits, on the digits and a model of 650 values that
is trained for one step. Under load the sites' tokens renew themselves, since they live for `--token-life`,
and `offbeat enrol --host` renews the server's certificate every `--certificate-every` seconds. After
`--stop-every` updates the server is stopped and starts again, and compresses its journal: the sites wait.

Every `--every` seconds a line goes to DIR/samples.jsonl: updates, and of each process memory, descriptors and
processor's time; bytes on disk. The same command goes on with a soak that was interrupted. At its end, and
with `--report`, a table says what each has at the beginning and at the end, and its slope: that of a line
through all samples but the first fifth after a start, with an offset for each start.
"""

import argparse
import itertools
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

COMMAND = (sys.executable, "-P", "-m", "offbeat.cli")
SERVER = "server"
RECIPE = """\
title: a soak
clients: {sites}
data: {{dataset: digits}}
model: {{name: logistic}}
training: {{optimizer: sgd, lr: 0.01, batch_size: 8}}
algorithm: {{name: fedasync, steps: 1}}
until: {{tasks: {updates}}}
evaluate: {{versions: 5000}}
"""
WARM_UP = 0.2
"""The share of the samples after a start that says nothing of growth."""
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class Soak:
    """The processes, and what is measured of them."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen, self.out = chosen, chosen.out
        self.state, self.samples = self.out / SERVER, self.out / "samples.jsonl"
        self.names = [f"site-{number}" for number in range(1, chosen.sites + 1)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start_number = 1 + max((sample["start"] for sample in read(self.samples)), default=-1)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def prepare(self) -> None:
        """Make what the processes need; a soak that goes on gets new kits, with the new address."""
        for folder in ("kits", "logs", "sites"):
            (self.out / folder).mkdir(parents=True, exist_ok=True)
        recipe = self.out / "recipe.yaml"
        if not recipe.exists():
            said = RECIPE.format(sites=self.chosen.sites, updates=self.chosen.updates)
            recipe.write_text(said, encoding="utf-8")
        for name in self.names:
            kit = self.out / "kits" / f"{name}.kit"
            kit.unlink(missing_ok=True)
            self.call(
                "enrol", name, "--state", self.state, "-o", kit, "--address", f"localhost:{self.port}",
                "--expires", self.chosen.token_life,
            )  # fmt: skip

    def run(self) -> None:
        """Run to the end of the updates; a process that fails ends the soak."""
        self.prepare()
        self.start_server()
        for number, name in enumerate(self.names, 1):
            kit, state = self.out / "kits" / f"{name}.kit", self.out / "sites" / name
            self.start(
                name, "join", kit, "--state", state,
                "--data", f"digits:{number}/{len(self.names)}", "--set", "access.give_up_after=900",
            )  # fmt: skip
        stop_at, renew_at = self.updates() + self.chosen.stop_every, time.monotonic()
        begun, first = time.monotonic(), self.updates()
        while not self.ended():
            time.sleep(self.chosen.every)
            if self.ended():
                break
            done = self.sample()
            if time.monotonic() >= renew_at:
                renew_at = time.monotonic() + self.chosen.certificate_every
                self.call("enrol", "--state", self.state, "--host", "localhost")
            rate = (done - first) / (time.monotonic() - begun)
            left = (self.chosen.updates - done) / rate if rate else float("inf")
            print(
                f"{done:,} of {self.chosen.updates:,} updates, {rate:.0f}/s, {left / 60:.0f} min left",
                flush=True,
            )
            if done >= stop_at:
                stop_at = done + self.chosen.stop_every
                self.restart()

    def ended(self) -> bool:
        """Whether the server has ended well. Raises `RuntimeError` where a process has failed."""
        for name, process in self.processes.items():
            if process.poll() not in (None, 0):
                raise RuntimeError(
                    f"{name} has failed with {process.returncode}: see {self.out / 'logs' / name}.log"
                )
        return self.processes[SERVER].poll() == 0

    def restart(self) -> None:
        """Stop the server, and start it again."""
        server = self.processes.pop(SERVER)
        server.send_signal(signal.SIGTERM)
        server.wait()
        self.start_number += 1
        self.start_server()

    def start_server(self) -> None:
        """Start the server, and wait until it listens."""
        self.start(
            SERVER, "serve", self.out / "recipe.yaml", "--state", self.state,
            "--listen", f"localhost:{self.port}", "--sites", len(self.names),
            "--set", "server.archive=10",
        )  # fmt: skip
        while not self.ended():
            with suppress(OSError), socket.create_connection(("localhost", self.port), 1.0):
                return
            time.sleep(0.2)

    def start(self, name: str, *words: object) -> None:
        with (self.out / "logs" / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*COMMAND, *map(str, words)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def call(self, *words: object) -> str:
        done = subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"offbeat {words[0]} has failed: {done.stdout}{done.stderr}")
        return done.stdout

    def sample(self) -> int:
        """Write a line of what the processes that run have; returns the number of updates."""
        done = self.updates()
        # At the end of the run the sites leave before the server ends.
        alive = {name: process.pid for name, process in self.processes.items() if process.poll() is None}
        found: dict[str, Any] = {
            "at": time.time(), "start": self.start_number, "updates": done,
            "disk": {"server": size(self.state), "sites": size(self.out / "sites")},
            "processes": {name: used(pid) for name, pid in alive.items()},
        }  # fmt: skip
        with self.samples.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        return done

    def updates(self) -> int:
        """Updates that the server has taken, from the last rows of its journal."""
        path = self.state / "run.db"
        if not path.exists():
            return 0
        query = "SELECT max(task) FROM (SELECT task FROM journal ORDER BY seq DESC LIMIT 50)"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)) as database:
            found = database.execute(query).fetchone()[0]
        return 0 if found is None else max(0, found + 1 - len(self.names))

    def close(self) -> None:
        """End all processes, the server first."""
        for name in sorted(self.processes, key=lambda name: name != SERVER):
            process = self.processes[name]
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            process.wait()


def used(pid: int) -> dict[str, float]:
    """MiB of memory, descriptors and processor's seconds of a process."""
    place = Path(f"/proc/{pid}")
    times = (place / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
    resident = int((place / "statm").read_text(encoding="ascii").split()[1])
    return {
        "MiB": resident * PAGE / 2**20, "descriptors": len(list((place / "fd").iterdir())),
        "seconds": (int(times[11]) + int(times[12])) / TICKS,
    }  # fmt: skip


def size(folder: Path) -> float:
    """MiB that the files in a folder take on disk."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total / 2**20


def read(path: Path) -> list[dict[str, Any]]:
    """The samples so far; a line that a kill has cut is left out."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = []
    for line in lines:
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def series(samples: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[tuple[str, float, float]]]]:
    """What is watched by name: (start, updates, value) of each sample."""
    names = list(dict.fromkeys(name for sample in samples for name in sample["processes"]))
    for what in ("MiB", "descriptors"):
        for name in names:
            yield (
                f"{name}, {what}",
                [
                    (str(s["start"]), s["updates"], s["processes"][name][what])
                    for s in samples
                    if name in s["processes"]
                ],
            )
    for name in ("server", "sites"):
        yield f"disk of {name}, MiB", [(str(s["start"]), s["updates"], s["disk"][name]) for s in samples]


def slope(points: Sequence[tuple[str, float, float]]) -> tuple[float, float]:
    """The slope for a million updates, and its standard error, with an offset for each start."""
    x, y, count = [], [], 0
    for start in dict.fromkeys(point[0] for point in points):
        own = [(at, value) for begun, at, value in points if begun == start]
        own = own[int(len(own) * WARM_UP) :]
        if len(own) > 2:
            at, value = np.array(own).T
            x.append(at - at.mean())
            y.append(value - value.mean())
            count += 1
    if not x or not (spread := float((np.concatenate(x) ** 2).sum())):
        return float("nan"), float("nan")
    ats, values = np.concatenate(x), np.concatenate(y)
    found = float(ats @ values) / spread
    left = float(((values - found * ats) ** 2).sum()) / max(1, len(ats) - count - 1)
    return 1e6 * found, 1e6 * (left / spread) ** 0.5


def report(out: Path) -> None:
    """Print the table."""
    samples = read(out / "samples.jsonl")
    if len(samples) < 2:
        print("too few samples")
        return
    first, last = samples[0], samples[-1]
    hours = (last["at"] - first["at"]) / 3600
    starts = len({sample["start"] for sample in samples})
    print(f"{last['updates']:,} updates in {hours:.2f} h, the server started {starts} times")
    print("\n| | at first | at the end | most | slope for 10⁶ updates |\n|---|---|---|---|---|")
    for name, points in series(samples):
        values, (found, error) = [value for _, _, value in points], slope(points)
        columns = [f"{value:.1f}" for value in (values[0], values[-1], max(values))]
        print(f"| {name} | {' | '.join(columns)} | {found:+.1f} ± {2 * error:.1f} |")
    print("\nAt the last sample of each start, which a site lives through; disk, at the first:\n")
    for name, points in series(samples):
        if "MiB" in name:
            once = {begun: value for begun, _, value in (points[::-1] if "disk" in name else points)}
            print(f"{name}: {', '.join(f'{once[begun]:.1f}' for begun in sorted(once, key=int))}")
    print()
    for name in dict.fromkeys(name for sample in samples for name in sample["processes"]):
        print(f"{name}: {1e3 * processor(samples, name):.2f} ms of the processor for an update of its own")
    said = (out / "logs" / f"{SERVER}.log").read_text(encoding="utf-8", errors="replace")
    for what, line in (
        ("tokens renewed", "the token is renewed"),
        ("certificates read again", "server.pem.*read again"),
    ):
        print(f"{what}: {len(re.findall(line, said))}")


def processor(samples: Sequence[dict[str, Any]], name: str) -> float:
    """Seconds of the processor for an update: of the server's all, of a site's its share."""
    seconds = updates = 0.0
    sites = len(samples[0]["processes"]) - 1
    for before, after in itertools.pairwise(samples):
        if name in before["processes"] and name in after["processes"]:
            spent = after["processes"][name]["seconds"] - before["processes"][name]["seconds"]
            if spent >= 0:
                seconds += spent
                updates += (after["updates"] - before["updates"]) / (1 if name == SERVER else sites)
    return seconds / updates if updates else float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--stop-every", type=int, default=50_000, help="updates between two archivings")
    parser.add_argument("--token-life", default="5m", help="as for `offbeat enrol --expires`")
    parser.add_argument("--certificate-every", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples")
    parser.add_argument("--report", action="store_true", help="only print the table so far")
    chosen = parser.parse_args()
    if not chosen.report:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        soak = Soak(chosen)
        try:
            soak.run()
        finally:
            soak.close()
    report(chosen.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
