"""Start-up times of the package and the command line, as multiples of the time of `import torch`.

    python benchmarks/startup.py [--runs 7]

Each case is a process of its own. The cases take turns with `import torch`, so that all meet the same load of
the machine. What is compared is processor time, user and system; the table has medians. Python must be
allowed to write bytecode (no PYTHONDONTWRITEBYTECODE): else each process compiles the package anew.
"""

import argparse
import resource
import statistics
import subprocess
import sys
from tempfile import TemporaryDirectory

PYTHON = sys.executable
CASES = {
    "import torch": [PYTHON, "-c", "import torch"],
    "import offbeat": [PYTHON, "-c", "import offbeat"],
    "import offbeat, use it": [PYTHON, "-c", "import offbeat; offbeat.simulate, offbeat.fedbuff"],
    "offbeat --help": [PYTHON, "-m", "offbeat.cli", "--help"],
    "offbeat serve --help": [PYTHON, "-m", "offbeat.cli", "serve", "--help"],
    "offbeat --hlep": [PYTHON, "-m", "offbeat.cli", "--hlep"],
    "offbeat run digits --sed 3": [PYTHON, "-m", "offbeat.cli", "run", "digits", "--sed", "3"],
    "offbeat algorithms": [PYTHON, "-m", "offbeat.cli", "algorithms"],
    "offbeat run digits, 1 task": [PYTHON, "-m", "offbeat.cli", "run", "digits", "--set", "until.tasks=1"],
}


def processor_seconds(command: list[str]) -> float:
    """User and system time of a process, which may write into a directory of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with TemporaryDirectory() as directory:
        subprocess.run(
            command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7, help="processes of each case")
    runs = parser.parse_args().runs
    for command in CASES.values():  # once, unmeasured: files come into the system's cache
        processor_seconds(command)
    seconds: dict[str, list[float]] = {case: [] for case in CASES}
    for _ in range(runs):
        for case, command in CASES.items():
            seconds[case].append(processor_seconds(command))
    reference = statistics.median(seconds["import torch"])
    for case in CASES:
        median = statistics.median(seconds[case])
        print(f"{case:<28} {median:6.2f} s  {median / reference:5.2f} ×")


if __name__ == "__main__":
    main()
