"""Write beside each pin of constraints.txt which Pythons its distribution admits.

    python scripts/pins.py

pip reads the metadata from the package index, and installs nothing. It needs pip 25.1 or newer, and the
packages of the dependency group `release`. The tests compare what is written with the Pythons that
pyproject.toml promises; `make release-check` reads the metadata again.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
PATCHES = 30
"""More than a series of Python has had."""
_PIN = re.compile(r"^(?P<pin>(?P<name>[\w.-]+)==\S+)(?:  # Python (?P<pythons>.+))?$", re.MULTILINE)


def promised() -> list[str]:
    """The versions of Python that pyproject.toml promises, by patch levels, from the oldest to the newest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    admitted = SpecifierSet(project["requires-python"])
    series = re.findall(r":: (3\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
    return [
        version for minor in series for patch in range(PATCHES) if (version := f"{minor}.{patch}") in admitted
    ]


def pins(text: str) -> dict[str, str | None]:
    """What is written beside each pin: the Pythons that it admits.

    Args:
        text: The lines of constraints.txt.
    """
    return {found["pin"]: found["pythons"] for found in _PIN.finditer(text)}


def refused(text: str, pythons: list[str]) -> list[str]:
    """The pins that do not admit each of some Pythons, and those with nothing beside them.

    Args:
        text: The lines of constraints.txt.
        pythons: Versions of Python.
    """
    wrong = []
    for pin, admitted in pins(text).items():
        if admitted is None:
            wrong.append(f"{pin} says no Pythons: run python scripts/pins.py")
        elif lacking := [each for each in pythons if each not in specifiers(admitted)]:
            wrong.append(f"{pin} admits Python {admitted}, and not {', '.join(lacking)}")
    return wrong


def specifiers(admitted: str) -> SpecifierSet:
    """The versions of Python that a pin admits, as they are written beside it."""
    return SpecifierSet("" if admitted == "any" else admitted)


def with_pythons(text: str, metadata: dict[str, str | None]) -> str:
    """The lines of constraints.txt with what distributions admit.

    Args:
        text: The lines.
        metadata: `Requires-Python` of the distributions by their canonical names. None means any Python.
    """
    return _PIN.sub(
        lambda found: f"{found['pin']}  # Python {metadata[canonicalize_name(found['name'])] or 'any'}", text
    )


def read_index() -> dict[str, str | None]:
    """`Requires-Python` of each pinned distribution, from the index. Raises `CalledProcessError`."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet")
    options = ("--dry-run", "--ignore-installed", "--ignore-requires-python", "--no-deps")
    wheels = ("--only-binary", ":all:", "--use-feature", "fast-deps")  # of a wheel its metadata alone
    done = subprocess.run(
        [*pip, *options, *wheels, "--report", "-", "-r", CONSTRAINTS],
        capture_output=True,
        text=True,
        check=True,
    )
    installed = [each["metadata"] for each in json.loads(done.stdout)["install"]]
    return {canonicalize_name(each["name"]): each.get("requires_python") for each in installed}


def main() -> None:
    """Write them, and name the pins that refuse a Python that is promised."""
    try:
        text = with_pythons(CONSTRAINTS.read_text("utf-8"), read_index())
    except subprocess.CalledProcessError as error:
        sys.exit(error.stderr)
    CONSTRAINTS.write_text(text, encoding="utf-8")
    if wrong := refused(text, promised()):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
