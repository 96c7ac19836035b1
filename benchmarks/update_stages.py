"""Where the processor's time of an update goes: each stage at the server and at the site, beside raw gRPC.

    python benchmarks/update_stages.py [--megabytes 1] [--updates 1000] [--sites 1]

A server of FedAsync and a process with its sites, which need no time to train, are measured from within: the
processor's time of the thread that does a stage, without that of the stages in it. What no stage has is the
time of gRPC, of the event loop and of handing over between threads. `raw_grpc.py` carries the same bytes, so
its time, of both ends together, is what the last rows are to be compared with.
"""

import asyncio
import json
import os
import resource
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import offbeat  # noqa: F401  before PyTorch, as the command has it

# isort: split
from harness import Rows, main
from round_trip import exchanges, raw_times, serve_run, warmed_up

from offbeat.core.global_model import GlobalModel
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.state_files import StateFiles, UpdateLog
from offbeat.net.server.validation import EachUpdateCheck
from offbeat.net.wire.reader import MessageReader
from offbeat.net.wire.writer import MessageWriter
from tests.storm.processes import fork, kill, leave_when_told

STAGES: tuple[tuple[type, str, str], ...] = (
    (MessageReader, "feed", "frame in: parse, checksum, copy"),
    (EachUpdateCheck, "check", "check, norms and the guard"),
    (GlobalModel, "_next", "new version, norm of its step"),
    (Coordinator, "receive", "events, commands, rows"),
    (Coordinator, "tick", "events, commands, rows"),
    (Coordinator, "take", "events, commands, rows"),
    (UpdateLog, "append", "update to its file"),
    (DurableStore, "commit", "commit"),
    (StateFiles, "commit", "commit"),
    (MessageWriter, "frame", "frame out: encode, copy, checksum"),
)
"""A method, and the stage that it belongs to."""
REST = "gRPC, event loop, threads"


class Stages:
    """The processor's seconds of each stage in this process."""

    def __init__(self) -> None:
        self._spent: Counter[str] = Counter()
        self._lock = threading.Lock()
        # For each stage that a thread is in, the seconds of the stages in it.
        self._within = threading.local()
        for owner, name, stage in STAGES:
            setattr(owner, name, self._timed(getattr(owner, name), stage))

    def _timed(self, method: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            stack: list[float] = self._within.__dict__.setdefault("stack", [0.0])
            stack.append(0.0)
            begun = time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                seconds = time.thread_time() - begun
                within = stack.pop()
                stack[-1] += seconds
                with self._lock:
                    self._spent[stage] += seconds - within

        return timed

    def tell(self, path: Path) -> None:
        """Write the seconds of the stages, and those that none of them has."""
        with self._lock:
            spent = dict(self._spent)
        spent[REST] = time.process_time() - sum(spent.values())
        part = path.with_suffix(".part")
        part.write_text(json.dumps(spent), encoding="ascii")
        part.replace(path)


def serve_measured(state: Path, values: int, sites: int, durable: bool) -> None:
    """Serve, and tell the stages' seconds at each SIGUSR1."""
    stages = Stages()
    signal.signal(signal.SIGUSR1, lambda *_: stages.tell(state.parent / "stages.json"))
    serve_run(state, values, sites, durable)


def send_measured(directory: Path, address: str, values: int, sites: int, counts: tuple[int, int]) -> None:
    """Send updates of so many sites twice, and tell the stages' seconds after each time."""
    stages = Stages()

    async def all_sites(count: int) -> None:
        await asyncio.gather(*(exchanges(address, values, count, f"site-{i}") for i in range(sites)))

    for number, count in enumerate(counts):
        asyncio.run(all_sites(count))
        stages.tell(directory / f"sent-{number}.json")


def seconds_at(path: Path) -> dict[str, float]:
    """What is told in a file, once it is there; the file is deleted."""
    while not path.exists():
        time.sleep(0.01)
    found: dict[str, float] = json.loads(path.read_text(encoding="ascii"))
    path.unlink()
    return found


def measure(directory: Path, values: int, sites: int, updates: int, durable: bool) -> list[dict[str, float]]:
    """Milliseconds of each stage for an update: those of the server, and those of the sites."""
    name = "durable" if durable else "volatile"
    place = directory / name
    place.mkdir()
    server = fork(lambda: serve_measured(place / "state", values, sites, durable), place / "server.log")
    address = f"127.0.0.1:{seconds_at(place / 'state.json')}"
    each = max(1, updates // sites)
    work = lambda: send_measured(place, address, values, sites, (max(1, each // 10), each))  # noqa: E731
    sender = fork(work, place / "sites.log")
    told = []
    try:
        for number in range(2):
            sent = seconds_at(place / f"sent-{number}.json")
            os.kill(server, signal.SIGUSR1)
            told.append((seconds_at(place / "stages.json"), sent))
    finally:
        kill(sender)
        kill(server)
    count = sites * warmed_up(each)
    (server_before, site_before), (server_after, site_after) = told
    return [
        {stage: 1e3 * (after[stage] - before.get(stage, 0.0)) / count for stage in after}
        for before, after in ((server_before, server_after), (site_before, site_after))
    ]


def raw_milliseconds(values: int, sites: int, updates: int, durable: bool) -> float:
    """Milliseconds of the processor that raw gRPC takes at both ends for an update."""
    each = max(1, updates // sites)

    def seconds(count: int) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        raw_times(4 * values, sites, count, durable=durable, keeps=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    few = max(1, each // 10)
    return 1e3 * (seconds(each) - seconds(few)) / (sites * (warmed_up(each) - warmed_up(few)))


def update_stages(megabytes: float = 1.0, updates: int = 1000, sites: int = 1) -> Rows:
    """Milliseconds of the processor for an update.

    megabytes: size of the model
    updates: updates to measure, of all sites together
    sites: sites that deliver at once
    """
    leave_when_told()
    values = int(megabytes * 250_000)
    columns: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="offbeat-stages-") as name:
        for durable in (False, True):
            server, site = measure(Path(name), values, sites, updates, durable)
            kind = "durable" if durable else "nothing written"
            columns |= {f"server, {kind}": server, f"site, {kind}": site}
            columns[f"raw gRPC, both ends, {kind}"] = {
                REST: raw_milliseconds(values, sites, updates, durable)
            }
    for stage in (*dict.fromkeys(stage for _, _, stage in STAGES), REST):
        cells = {column: f"{own[stage]:.2f}" if stage in own else None for column, own in columns.items()}
        yield {"stage": stage, **cells}
    yield {"stage": "**together**", **{column: f"{sum(own.values()):.2f}" for column, own in columns.items()}}


if __name__ == "__main__":
    main(update_stages)
