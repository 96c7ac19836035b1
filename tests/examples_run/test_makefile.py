"""The first two commands, with a Python that installs nothing: what they ask of pip, and what they say."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
echo "$@" >> calls
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin
    for name in python pytest offbeat; do cp "$0" .venv/bin/$name; done ;;
  *"pip install"*) echo "words of pip"; echo "a reason" >&2; test ! -e broken ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile, what it depends on, and a program in place of Python."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "papers/pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def made(checkout: Path, target: str) -> tuple[int, str, list[str]]:
    """The exit code of make, what it said, and the installations that it asked for."""
    (checkout / "calls").write_text("")
    done = subprocess.run(
        ["make", target, f"PYTHON={checkout}/python"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    calls = (checkout / "calls").read_text().splitlines()
    return done.returncode, done.stdout + done.stderr, [call for call in calls if "pip install" in call]


def test_the_demo_installs_what_it_needs_and_the_tests_add_the_rest_once(checkout: Path) -> None:
    code, said, (demo,) = made(checkout, "demo")
    assert (code, "words of pip" in said) == (0, False)
    assert demo.endswith("-c constraints.txt -e .[digits]")
    code, _, (rest,) = made(checkout, "test")
    assert code == 0
    assert rest.endswith("-e .[digits,net,flower,dev,docs] -e ./papers")
    for target in ("demo", "test", "env"):
        assert made(checkout, target)[2] == []


def test_an_installation_that_fails_shows_what_pip_says(checkout: Path) -> None:
    (checkout / "broken").touch()
    code, said, _ = made(checkout, "demo")
    assert code != 0
    assert "words of pip\na reason" in said
    assert "offbeat compare" not in said
    (checkout / "broken").unlink()
    assert made(checkout, "demo")[0] == 0
