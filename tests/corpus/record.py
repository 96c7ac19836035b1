"""Make the corpus of the format that this version writes: python -m tests.corpus.record [NAME …]

Run it from the root of the checkout. Entries that are there stay as they are, unless they are named: what a
version recorded is what later versions are held to. A new format begins an empty folder of its own.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import yaml

from offbeat.runs.schema import FORMAT
from offbeat.sim.backend import LiveBackend
from tests.corpus.archive import (
    CONTENTS,
    FOLDER,
    contents,
    describe,
    file_digests,
    folder_of,
    pack,
    write_contents,
)
from tests.corpus.command_line import offbeat
from tests.corpus.simulated import BASE, SIMULATED, Simulated

RECIPE, RUN = "recipe.yaml", "run"


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
            known[name] = {**told, "files": file_digests(place), "runs": describe(place)}
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
    return makers


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
    code, printed = offbeat("run", place / RECIPE, "--out", place / RUN, *run.options)
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

    import offbeat.sim.simulate as module

    defaults = {**module.simulate.__kwdefaults__, **({"checkpoint_seconds": 0.0} if copied else {})}
    with (
        patch.object(LiveBackend, "finish", counted),
        patch.object(module.simulate, "__kwdefaults__", defaults),
    ):
        yield


def say(line: str) -> None:
    """Write a line to the standard output."""
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
