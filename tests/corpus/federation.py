"""Real processes of a served run: `offbeat serve`, `offbeat join` and `offbeat helper` on loopback."""

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from offbeat.cli.state_dir import SERVER
from offbeat.core.errors import OffbeatError
from offbeat.runs.record import read_run
from tests.corpus.command_line import own_options
from tests.forks import OFFBEAT, Fork

ROOT = Path(__file__).parents[2]
RECIPE, RUN = "recipe.yaml", "run"
SECONDS = 300  # to wait for what is about to happen


class Federation:
    """The processes of one run, whose folder has the recipe, the run, and the state of sites and helpers.

    Args:
        folder: The folder.
        entry: What the contents say of it: `serve`, `sites`, `pace`, `join`, `helpers`, `tokens`, `own`.
    """

    def __init__(self, folder: Path, entry: Mapping[str, Any], script: Path = OFFBEAT) -> None:
        self.folder, self.entry, self.run, self.script = folder, entry, folder / RUN, script
        self.server: Fork | None = None
        self.address = ""
        self.others: dict[str, Fork] = {}

    def start(self) -> str:
        """Start the server, and wait until it listens; returns what it has printed where it ends instead."""
        options = [*self.entry["serve"], *own_options(self.entry)]
        if self.entry["tokens"]:
            options += ["--tokens", self.run / "tokens.json"]
        words = ("serve", self.folder / RECIPE, "--state", self.run, "--listen", "127.0.0.1:0", *options)
        self.server = server = Fork(self.script, *words, cwd=ROOT)

        def listens() -> bool:
            if server.poll() is not None:
                return True
            with suppress(OSError, ValueError):
                told = json.loads((self.run / SERVER).read_text(encoding="utf-8"))
                self.address = told["address"]
                return bool(told["pid"] == server.pid)
            return False

        wait_for(listens)
        return "" if server.poll() is None else "".join(server.communicate())

    def start_sites(self, wanted: Sequence[int] | None = None) -> None:
        """Start sites, by number, all by default; and the helpers."""
        for name in self.entry["helpers"] if wanted is None else ():
            state = self.folder / f"helper-{name}"
            words = ("helper", self.address, "--name", name, "--state", state)
            self.others[name] = Fork(OFFBEAT, *words, cwd=ROOT)
        for number, data in enumerate(self.entry["sites"]):
            if wanted is None or number in wanted:
                self.others[f"site-{number}"] = self._site(number, data)

    def _site(self, number: int, data: str) -> Fork:
        token = self.folder / f"site-{number}.token"
        named = (
            ("--set", f"access.token_file={token}") if self.entry["tokens"] else ("--name", f"site-{number}")
        )
        allowed = own_options(self.entry)
        words = (
            "join", self.address, "--data", data, *named, "--state", self.folder / f"site-{number}",
            "--set", f"site.min_step_seconds={self.entry['pace'][number]}", *self.entry["join"], *allowed,
        )  # fmt: skip
        return Fork(OFFBEAT, *words, cwd=ROOT)

    def arrived(self) -> int:
        """Updates that have arrived and are durable."""
        with suppress(OffbeatError):
            return sum(row.name == "arrived" for row in read_run(self.run).rows())
        return 0

    def leave(self, number: int) -> tuple[int, str]:
        """End the server by a signal; returns its exit status, and what it has printed."""
        assert self.server is not None
        self.server.send_signal(number)
        status = self.server.wait(SECONDS)
        return status, "".join(self.server.communicate())

    def end(self) -> None:
        """End what still runs."""
        for process in (self.server, *self.others.values()):
            if process is not None:
                process.kill()
                with suppress(ValueError):  # what it has written is read already
                    process.communicate(SECONDS)


@contextmanager
def federation(folder: Path, entry: Mapping[str, Any], script: Path = OFFBEAT) -> Iterator[Federation]:
    """A federation whose processes end with the context."""
    found = Federation(folder, entry, script)
    try:
        yield found
    finally:
        found.end()


def wait_for(ready: Callable[[], bool]) -> None:
    """Wait for something that is about to be true."""
    until = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < until, "it has not happened"
        time.sleep(0.02)


def kill_at_once(folder: Path, entry: Mapping[str, Any]) -> str:
    """Start a run's server without a site and kill it: it leaves the checkpoint of what it has recovered.

    What comes later, such as timers that are due by then, is in no checkpoint yet; and while a release waits
    for its helpers there is none but the one before. Returns what a server has printed
    that does not start.
    """
    with federation(folder, entry) as found:
        if printed := found.start():
            return printed
        found.leave(signal.SIGKILL)
    return ""
