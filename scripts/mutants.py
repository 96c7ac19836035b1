"""Change the source in one place at a time and see whether the tests of that place fail.

    python scripts/mutants.py                   # all of them; exits with 1 if a change is not caught
    python scripts/mutants.py staleness port    # those whose file or rule has one of these words

The changes are in mutants.yaml. The tests run on a copy of the package, with the markers that `make test`
has, and stop at the first failure.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    """A change of one place: `old`, which is in `file` once, becomes `new`; `tests` are to notice."""

    file: str
    rule: str
    old: str
    new: str
    tests: str = ""

    @property
    def paths(self) -> list[str]:
        """The tests; by default those that mirror the file."""
        folder, _, name = self.file.rpartition("/")
        return self.tests.split() or [f"tests/{folder}/test_{name}"]


def read_mutants() -> list[Mutant]:
    """The mutants of mutants.yaml."""
    files = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    return [Mutant(file, rule, **change) for file, rules in files.items() for rule, change in rules.items()]


def caught(mutant: Mutant, copy: Path) -> bool:
    """Do the tests fail with this change in the copy of the package?"""
    path = copy / "offbeat" / mutant.file
    text = path.read_text("utf-8")
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.file} has {text.count(mutant.old)} times, not once: {mutant.old!r}")
    path.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *mutant.paths],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    path.write_text(text, "utf-8")
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.returncode == 1


def main(words: list[str]) -> int:
    """Print one line for each mutant; returns 1 if one survives."""
    chosen = [m for m in read_mutants() if not words or any(word in f"{m.file} {m.rule}" for word in words)]
    survived = 0
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        shutil.copytree(
            ROOT / "src" / "offbeat", copy / "offbeat", ignore=shutil.ignore_patterns("__pycache__")
        )
        for mutant in chosen:
            found = caught(mutant, copy)
            survived += not found
            print(f"{'caught  ' if found else 'SURVIVED'}  {mutant.file}: {mutant.rule}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} caught")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
