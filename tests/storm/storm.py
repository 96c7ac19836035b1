"""A server, its sites and helpers, and a relay between them: processes that are killed over and over."""

import asyncio
import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import yaml

from offbeat.net.auth.ca import OwnAuthority
from offbeat.net.auth.tokens import make_token
from offbeat.net.kit import make_kit, write_kit
from offbeat.runs.record import RunRecord, read_run
from tests.storm.bad_network import relay
from tests.storm.processes import call_offbeat, ended, fork, has_ended, kill
from tests.storm.witness import help_out, keep_seeds, take_part

PROCESSES, LAST_VERSIONS = 4, 10
WHOLE = "the mirror has all that the run has"
"""Event of a server whose mirror is whole."""
KIT_LIFE = 240
"""Seconds that a kit's token lives: it is renewed while a run goes on, and outlives any pause of a site."""
IMPORTED = (
    "grpc.aio", "sklearn.datasets", "offbeat.cli.serve", "offbeat.net.secure.helping",
    "offbeat.net.client.join", "offbeat.net.grpc.client", "offbeat.net.grpc.server",
    "offbeat.net.server.open_run", "offbeat.recipes.build", "offbeat.recipes.load",
)  # fmt: skip
"""What the processes need: imported before they are forked, so that they start at once."""


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
    snapshots: int = 0
    losses: int = 0
    recovery: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Weather:
    """How bad it is.

    Attributes:
        seed: Of what happens when.
        pace: Seconds that a local step takes at least.
        full: How likely the server starts on a full disk.
        lease: Lease of the sites in seconds.
        hostile: Number of sites that send absurd updates.
        patience: Seconds for what must come to come.
        snapshots: How likely the snapshot is damaged or deleted while the server is dead.
    """

    seed: int = 1
    pace: float = 0.05
    full: float = 0.1
    lease: float = 6.0
    hostile: int = 0
    patience: float = 300.0
    snapshots: float = 0.0


class Storm:
    """The processes of a federation in a directory, and what is done to them.

    Args:
        directory: Where they work: the server in `state`, each helper in a directory of its name, the sites
            in `sites`; their kits are in `kits`; the noise's seeds are kept in `seeds`.
        recipe: The recipe.
        weather: How bad it is.
        mirrored: Whether the server has a mirror.
    """

    def __init__(
        self, directory: Path, recipe: dict[str, Any], weather: Weather, mirrored: bool = False
    ) -> None:
        for name in IMPORTED:
            import_module(name)
        self.directory, self.weather, self.sites = directory, weather, recipe["clients"]
        self.chance, self.counts = Random(weather.seed), Counts()
        self.state, self.logs, self.seeds = directory / "state", directory / "sites", directory / "seeds"
        self.kits = directory / "kits"
        self.mirror = directory / "disk-0" if mirrored else None
        self.recipe = directory / "recipe.yaml"
        self.recipe.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        self.helper_names: list[str] = recipe.get("privacy", {}).get("secure", {}).get("helpers", [])
        self.site_names = [f"site-{i}" for i in range(self.sites)]
        self.port = self.relay_port = 0
        self.server = self.network = 0
        self.processes: list[int] = []
        self.helpers: dict[str, int] = {}
        self.room: int | None = None
        self.starts = 0
        self.paused: dict[int, float] = {}  # a process's place, and when it goes on
        self.logs.mkdir()
        self.seeds.mkdir()

    # ---- starting ----

    def start(self) -> None:
        """Start all of them, and wait for the first version."""
        OwnAuthority(self.state).issue(["127.0.0.1"])
        self.start_server()
        self.await_server()
        self.start_network()
        self.make_kits([*self.helper_names, *self.site_names])
        for name in self.helper_names:
            self.start_helper(name)
        self.processes = [self.start_sites(place) for place in range(PROCESSES)]
        self.wait(lambda: newest_version(read_run(self.state)) > 0)

    def make_kits(self, names: Iterable[str]) -> None:
        """Enrol sites and helpers, or enrol them anew: a kit is renewed only while its site is connected."""
        self.kits.mkdir(exist_ok=True)
        tokens, ca = self.state / "tokens.json", OwnAuthority(self.state).ca.read_text(encoding="utf-8")
        for name in names:
            token = make_token(tokens, name, life=KIT_LIFE)
            kit = make_kit(f"127.0.0.1:{self.relay_port}", token, time.time() + KIT_LIFE, ca, "", "")
            write_kit(self.kit(name), kit)

    def kit(self, name: str) -> Path:
        """The kit of a site or a helper."""
        return self.kits / f"{name}.kit"

    def start_server(self, versions: int = 10**6, room: int | None = None) -> None:
        """Start the server, on the port it had before. With `room` no file may have more bytes than that."""
        words = [
            "serve", str(self.recipe), "--state", str(self.state), "--listen", f"127.0.0.1:{self.port}",
            "--set", f"server.lease={self.weather.lease}", "--log", "json",
            "--set", f"until.versions={versions}", "--set", "server.unmasking.timeout=3",
        ]  # fmt: skip
        if self.mirror is not None:
            words += ["--mirror", str(self.mirror)]
        self.room, self.starts = room, self.starts + 1
        seeds = self.seeds / str(self.starts)

        def work() -> None:
            keep_seeds(seeds)
            if room is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
            call_offbeat(words)

        self.server = fork(work, self._server_log)

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
        kits = [self.kit(name) for name in self.site_names[place::PROCESSES]]
        hostile = [f"site-{i}" for i in range(self.weather.hostile)]
        address, pace, masks = f"127.0.0.1:{self.relay_port}", self.weather.pace, bool(self.helper_names)
        return fork(
            lambda: take_part(address, kits, self.sites, self.logs, pace, hostile, masks),
            self.directory / f"sites-{place}.log",
        )

    def start_helper(self, name: str) -> None:
        """Start a helper."""
        address, state, kit = f"127.0.0.1:{self.relay_port}", self.directory / name, self.kit(name)
        self.helpers[name] = fork(
            lambda: help_out(address, kit, state), self.directory / f"helper-{name}.log"
        )

    def _kill_a_helper(self) -> None:
        name = self.chance.choice(self.helper_names)
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
                if self.chance.random() < 0.5:
                    self._await_version()
                self._run_for(self.chance.uniform(0.1, 6.0))
            if (status := ended(self.server)) is not None:
                self._count_end(status)
            else:
                self.kill_server()
            self._spoil_snapshot()
            self.start_server(room=self._room())

    def lose_disks(self, losses: int) -> None:
        """Delete the server's directory under load, so many times; each time its mirror is served then.

        It is deleted once the mirror is whole: until then the server says that what it acknowledges is on one
        disk alone.
        """
        for number in range(1, losses + 1):
            self.counts.recovery.append(self.await_server())
            self._await_version()
            self.wait(lambda: has_ended(self.server) or WHOLE in self._server_log.read_text())
            self._run_for(self.chance.uniform(0.1, 3.0))
            shutil.rmtree(self.state, ignore_errors=True)
            self._run_for(self.chance.uniform(0.0, 3.0))  # it goes on until it has to make a file
            if ended(self.server) is None:
                self.kill_server()
            self.counts.losses += 1
            assert self.mirror is not None
            shutil.rmtree(self.state, ignore_errors=True)
            self.state, self.mirror = self.mirror, self.directory / f"disk-{number}"
            self.start_server()

    @property
    def _server_log(self) -> Path:
        """What the present server says."""
        return self.directory / f"server-{self.starts}.log"

    def kill_server(self) -> None:
        """Kill the server."""
        kill(self.server)
        self.counts.kills += 1

    def _spoil_snapshot(self) -> None:
        """Flip one bit of the snapshot from which the server would start, or delete it."""
        if not self.chance.random() < self.weather.snapshots:
            return
        with closing(sqlite3.connect(self.state / "run.db")) as database, database:
            found = database.execute("SELECT data FROM snapshot").fetchone()
            if found is None:
                return
            data, deletes = bytearray(found[0]), self.chance.random() < 0.5
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
            if deletes:
                database.execute("DELETE FROM snapshot")
            else:
                database.execute("UPDATE snapshot SET data = ?", (bytes(data),))
        self.counts.snapshots += 1

    def _await_version(self) -> None:
        """Wait until there is another version, unless the server ends."""
        before = newest_version(read_run(self.state))

        def come() -> bool:
            self._continue_sites()
            return has_ended(self.server) or newest_version(read_run(self.state)) > before

        self.wait(come)

    def _room(self) -> int | None:
        """How large files may be now: mostly as large as they like."""
        if self.chance.random() >= self.weather.full:
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
            if self.helpers and time.monotonic() > next_kill:
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
            self.paused[place] = time.monotonic() + self.weather.lease * self.chance.uniform(0.2, 1.8)
            self.counts.site_pauses += 1

    def _continue_sites(self, all_of_them: bool = False) -> None:
        for place, until in list(self.paused.items()):
            if all_of_them or time.monotonic() > until:
                os.kill(self.processes[place], signal.SIGCONT)
                del self.paused[place]

    # ---- calm ----

    def calm(self) -> None:
        """Let all processes be, and wait for the server."""
        self._continue_sites(all_of_them=True)
        self.counts.recovery.append(self.await_server())

    def finish(self) -> None:
        """Let the run reach some more versions, and the sites hear of its end."""
        self.calm()
        self.kill_server()  # once more: from now on it has an end
        versions = newest_version(read_run(self.state))
        self.start_server(versions + LAST_VERSIONS)
        self.wait(lambda: has_ended(self.server))
        if status := ended(self.server):
            raise RuntimeError(f"the server ended with {status}: see {self.directory}")
        time.sleep(1.0)

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + self.weather.patience
        while not until():
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {self.weather.patience:g} s: see {self.directory}")
            time.sleep(0.1)

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


def newest_version(record: RunRecord) -> int:
    """The newest version of a run's journal."""
    return max([row.version or 0 for row in record.rows("command")], default=0)
