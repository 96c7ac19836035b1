"""Start-up times of the package and the command line, as multiples of the time of `import torch`.

    python benchmarks/startup.py [--runs 7]

Each case is a process of its own. The cases take turns with `import torch`, so that all meet the same load of
the machine. What is compared is processor time, user and system; the table has medians. Python must be
allowed to write bytecode (no PYTHONDONTWRITEBYTECODE): else each process compiles the package anew.
"""

import resource
import subprocess
import sys
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory

from harness import Rows, in_turns, main

PYTHON = sys.executable
OFFBEAT = [PYTHON, "-m", "offbeat.cli"]
RUN = "the run's directory"
"""Stands in a command for the directory of a run of one task."""
CASES = {
    "import torch": [PYTHON, "-c", "import torch"],
    "import offbeat": [PYTHON, "-c", "import offbeat"],
    "import offbeat, use it": [PYTHON, "-c", "import offbeat; offbeat.simulate, offbeat.fedbuff"],
    "import offbeat.net": [PYTHON, "-c", "import offbeat.net.client.join"],
    "a site's first step": [PYTHON, "-c", "from offbeat.net.client.join import warm_up; warm_up()"],
    "offbeat --help": [*OFFBEAT, "--help"],
    "offbeat serve --help": [*OFFBEAT, "serve", "--help"],
    "offbeat --hlep": [*OFFBEAT, "--hlep"],
    "offbeat run digits --sed 3": [*OFFBEAT, "run", "digits", "--sed", "3"],
    "offbeat run digitz": [*OFFBEAT, "run", "digitz"],
    "offbeat algorithms": [*OFFBEAT, "algorithms"],
    "offbeat models": [*OFFBEAT, "models"],
    "offbeat enrol": [*OFFBEAT, "enrol", "north", "--state", ".", "-o", "kit", "--address", "localhost:1"],
    "offbeat status": [*OFFBEAT, "status", RUN],
    "offbeat audit": [*OFFBEAT, "audit", RUN],
    "offbeat replay --print": [*OFFBEAT, "replay", RUN, "--print"],
    "offbeat run digits, 1 task": [*OFFBEAT, "run", "digits", "--set", "until.tasks=1"],
}
WITH_PYTORCH = {
    "import torch", "import offbeat, use it", "import offbeat.net", "a site's first step",
    "offbeat run digits, 1 task",
}  # fmt: skip
MOST = 0.35
"""Time of a command that needs no PyTorch over that of its import, at most."""


def processor_seconds(command: list[str]) -> float:
    """User and system time of a process, which may write into a directory of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with TemporaryDirectory() as directory:
        subprocess.run(
            command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def startup(runs: int = 7) -> Rows:
    with TemporaryDirectory() as directory:
        subprocess.run([*OFFBEAT, "run", "digits", "--set", "until.tasks=1", "-o", directory], check=True)
        cases = {
            case: partial(processor_seconds, [directory if word is RUN else word for word in words])
            for case, words in CASES.items()
        }
        for measure in cases.values():  # once, unmeasured: files come into the system's cache
            measure()
        seconds = {case: median(own) for case, own in in_turns(runs, cases).items()}
    for case, own in seconds.items():
        ratio = own / seconds["import torch"]
        above = None if case in WITH_PYTORCH or ratio <= MOST else f"above {MOST}"
        yield {"command": case, "s": own, "by import torch": ratio, "limit": above}


if __name__ == "__main__":
    main(startup)
