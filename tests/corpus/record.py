"""Make the corpus of the format that this version writes: python -m tests.corpus.record [NAME …]

Run it from the root of the checkout. Entries that are there stay as they are, unless they are named: what a
version recorded is what later versions are held to. A new format begins an empty folder of its own.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import yaml

import offbeat as ob
from offbeat.runs.record import find_runs, read_run
from offbeat.runs.schema import FORMAT
from offbeat.sim.backend import LiveBackend
from tests.corpus import served as served_base
from tests.corpus.archive import (
    CONTENTS,
    FOLDER,
    contents,
    describe,
    file_digests,
    folder_of,
    pack,
    processor_bits,
    write_contents,
)
from tests.corpus.command_line import offbeat, own_options
from tests.corpus.federation import RECIPE, RUN, SECONDS, Federation, federation, kill_at_once, wait_for
from tests.corpus.from_python import FROM_PYTHON
from tests.corpus.served import SERVED, Served
from tests.corpus.simulated import BASE, SIMULATED, Simulated
from tests.forks import OFFBEAT, Fork

RECOVERED = "recovered"
LARGE = """
import offbeat.net.server.durable_store as store
from offbeat.cli import main

store.SMALL = 0  # every update is a large one
main()
"""


def main(wanted: list[str]) -> None:
    """Make the entries of these names, or all that are missing."""
    torch.set_num_threads(1)
    makers = all_makers()
    folder = folder_of(FORMAT)
    folder.mkdir(exist_ok=True)
    known = contents(FORMAT)["entries"] if (folder / CONTENTS).exists() else {}
    for name in wanted or [name for name in makers if name not in known]:
        with tempfile.TemporaryDirectory() as temporary:
            place = Path(temporary) / name
            place.mkdir(mode=0o700)
            told = makers[name](place)
            archive = folder / f"{name}.tar.xz"
            pack(place, archive)
            made = {"files": file_digests(place), "runs": describe(place), "processor": processor_bits()}
            known[name] = {**told, **made}
            write_contents(FORMAT, known)
            say(f"{name}: {archive.stat().st_size} bytes, {known[name]['runs']}")
    write_contents(FORMAT, {name: known[name] for name in makers if name in known})


def all_makers() -> dict[str, Callable[[Path], dict[str, Any]]]:
    """What makes each entry in an empty folder, and returns what the contents say of it."""
    makers: dict[str, Callable[[Path], dict[str, Any]]] = {}
    for name, run in SIMULATED.items():
        makers[name] = lambda place, run=run: finished(place, run)
        if run.stops is not None:
            makers[f"{name}-stopped"] = lambda place, run=run, name=name: stopped(place, run, name)
    for name in FROM_PYTHON:
        makers[name] = lambda place, name=name: from_python(place, name)
        makers[f"{name}-stopped"] = lambda place, name=name: from_python_stopped(place, name)
    makers["flower"] = flower
    makers["flower-stopped"] = flower_stopped
    makers["comparison"] = comparison
    makers["comparison-stopped"] = comparison_stopped
    for name, own in SERVED.items():
        makers[name] = lambda place, own=own: served(place, own)
    return makers


# ---- runs without a recipe, and several of one ----


def from_python(place: Path, name: str) -> dict[str, Any]:
    """A run of `offbeat.simulate`."""
    ob.simulate(**FROM_PYTHON[name](), seed=5, out=place / RUN)
    return {"kind": "python"}


def from_python_stopped(place: Path, name: str) -> dict[str, Any]:
    """The same, interrupted."""
    with stopping(13, None), suppress(KeyboardInterrupt):
        from_python(place, name)
    return {"kind": "python stopped", "ends_as": name}


def flower(place: Path) -> dict[str, Any]:
    """A run on Flower's nodes."""
    from tests.corpus.on_flower import serve_on_flower  # needs the extra flower

    serve_on_flower(place / RUN)
    return {"kind": "flower"}


def flower_stopped(place: Path) -> dict[str, Any]:
    """The same, whose server was interrupted."""
    from tests.corpus.on_flower import serve_on_flower

    with suppress(KeyboardInterrupt):
        serve_on_flower(place / RUN, arrivals=13)
    return {"kind": "flower stopped"}


def comparison(place: Path) -> dict[str, Any]:
    """A run of `offbeat compare`: two labels, each with two values of a sweep."""
    recipe = {
        **BASE,
        "algorithms": {"fedbuff": {"size": 2, "steps": 2}, "slow": {"name": "fedasync", "steps": 1}},
    }
    (place / RECIPE).write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    options = ["--seeds", "1", "--workers", "1", "--sweep", "training.lr=0.05,0.1"]
    process = Fork(OFFBEAT, "compare", place / RECIPE, "--out", place / "runs", *options)
    if process.wait(SECONDS):
        raise SystemExit("".join(process.communicate()))
    return {"kind": "comparison", "options": options, "missing": []}


def comparison_stopped(place: Path) -> dict[str, Any]:
    """The same, ended before its last run began."""
    told = comparison(place)
    last = find_runs(place / "runs")[-1].path
    shutil.rmtree(last)
    return {**told, "ends_as": "comparison", "missing": [last.relative_to(place).as_posix()]}


# ---- served runs ----


def served(place: Path, run: Served) -> dict[str, Any]:
    """A served run, left in the middle or at its end; and what its server recovers."""
    recipe = {**served_base.BASE, **run.recipe}
    (place / RECIPE).write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    entry = {
        "kind": f"served {run.left}", "serve": list(run.serve), "sites": list(run.data),
        "pace": list(run.pace), "join": list(run.join), "helpers": list(run.helpers),
        "tokens": run.tokens, "own": run.own,
    }  # fmt: skip
    if run.tokens:
        enrol(place, len(run.data))
    script = place.parent / "large.py"
    script.write_text(LARGE, encoding="utf-8")
    with federation(place, entry, script if run.log else OFFBEAT) as processes:
        if failed := processes.start():
            raise SystemExit(f"{place.name}: {failed}")
        processes.start_sites()
        if run.away:
            lose_a_site(processes)
        if run.left == "finished":
            assert processes.server is not None
            if status := processes.server.wait(SECONDS):
                raise SystemExit(f"{place.name}: exit code {status}\n{processes.server.communicate()}")
        else:
            wait_for(lambda: processes.arrived() >= run.arrivals)
            processes.leave(signal.SIGKILL if run.left == "killed" else signal.SIGTERM)
    if run.left != "finished":
        keep_recovered(place, entry)
    return entry


def enrol(place: Path, sites: int) -> None:
    """A token for each site."""
    for number in range(sites):
        code, printed = offbeat("enrol", f"site-{number}", "--state", place / RUN)
        assert code == 0, printed
        token = printed.splitlines()[-1]  # after what is said of the file that it makes
        (place / f"site-{number}.token").write_text(f"{token}\n", encoding="utf-8")


def lose_a_site(processes: Federation) -> None:
    """Kill a site until the server knows, and start it again."""
    wait_for(lambda: processes.arrived() >= 6)
    processes.others["site-0"].kill()
    wait_for(lambda: bool(read_run(processes.run).entries("left")))
    processes.start_sites([0])


def keep_recovered(place: Path, entry: dict[str, Any]) -> None:
    """Write beside the run what a server recovers from it: its checkpoint's numbers and state."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / place.name
        shutil.copytree(place, copy)
        kill_at_once(copy, entry)
        checkpoint = read_run(copy / RUN).checkpoint()
        assert checkpoint is not None
        (place / RECOVERED).with_suffix(".json").write_text(json.dumps(asdict(checkpoint)), encoding="utf-8")
        shutil.copy(copy / RUN / checkpoint.state, (place / RECOVERED).with_suffix(".safetensors"))


# ---- simulated runs ----


def finished(place: Path, run: Simulated) -> dict[str, Any]:
    """A run to its end."""
    simulate(place, run)
    return {"kind": "simulated", **told(run)}


def stopped(place: Path, run: Simulated, name: str) -> dict[str, Any]:
    """A run that is interrupted, or killed: a copy of what is on the disk."""
    assert run.stops is not None
    with stopping(run.stops, place if run.killed else None):
        simulate(place, run)
    if run.killed:
        shutil.rmtree(place / RUN)
        (place / "killed").rename(place / RUN)
    return {"kind": "stopped", "ends_as": name, **told(run)}


def told(run: Simulated) -> dict[str, Any]:
    """What a test needs to know of a simulated run."""
    return {"options": list(run.options), "own": run.own, "by_values": run.by_values}


def simulate(place: Path, run: Simulated) -> None:
    """`offbeat run`."""
    (place / RECIPE).write_text(yaml.safe_dump({**BASE, **run.recipe}, sort_keys=False), encoding="utf-8")
    shutil.copy(FOLDER / "trace.csv", place)
    (place / RUN).mkdir(mode=0o755)
    code, printed = offbeat(
        "run", place / RECIPE, "--out", place / RUN, *run.options, *own_options(told(run))
    )
    (place / "trace.csv").unlink()
    if code not in (0, 130):
        raise SystemExit(f"{place.name}: exit code {code}\n{printed}")


@contextmanager
def stopping(arrivals: int, copied: Path | None) -> Iterator[None]:
    """Interrupt a run after so many arrivals; a copy from just before goes to the folder `copied`."""
    finish, count = LiveBackend.finish, 0

    def counted(self: LiveBackend, *given: Any) -> Any:
        nonlocal count
        count += 1
        if copied is not None:
            time.sleep(0.3)  # so that there are checkpoints meanwhile, some updates apart
        if count == arrivals:
            if copied is not None:
                shutil.copytree(copied / RUN, copied / "killed")
            os.kill(os.getpid(), signal.SIGINT)
        return finish(self, *given)

    import offbeat.sim.run_experiment as module

    run = module.run_to_end

    def often(simulation: Any, backend: Any, store: Any, watch: Any, pause: float, *rest: Any) -> Any:
        return run(simulation, backend, store, watch, pause if copied is None else 0.0, *rest)

    with patch.object(LiveBackend, "finish", counted), patch.object(module, "run_to_end", often):
        yield


def say(line: str) -> None:
    """Write a line to the standard output."""
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
