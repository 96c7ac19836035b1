"""Lines of code by folder, and what a change adds to a commit."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "count_lines.py"

CODE = '''"""A module."""

import os  # a line of code


# a comment
class A:
    """A class.

    It has two lines.
    """

    name = "a"
    """Its name."""

    text = """
# no comment

"""


def f(
    x,
):
    return (
        x
        # a comment within
    )
'''


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The script on a repository of its own: its exit code, and what it prints."""
    found = runpy.run_path(str(SCRIPT))
    found["main"].__globals__["ROOT"] = tmp_path
    for words in (["init", "-q"], ["config", "user.email", "a@example.org"], ["config", "user.name", "A"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)

    def call(*words: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "argv", ["count_lines.py", *words])
        code = 0
        try:
            found["main"]()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return call


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def commit(root: Path) -> None:
    for words in (["add", "-A"], ["commit", "-q", "-m", "A commit"]):
        subprocess.run(["git", "-C", str(root), *words], check=True)


def test_lines_of_code_are_those_that_hold_a_token(script: Any, tmp_path: Path) -> None:
    write(tmp_path, "src/offbeat/a.py", CODE)
    # import, class, name, four lines of the text, and six of the function without its comment
    assert script() == (0, ["     13  src/offbeat", "     13  in all"], "")


def test_folders_right_below_a_package_are_counted_each_and_tests_as_a_whole(
    script: Any, tmp_path: Path
) -> None:
    for name in ("src/offbeat/net/wire/a.py", "src/offbeat/net/b.py", "tests/net/test_a.py", "tests/c.py"):
        write(tmp_path, name, "x = 1\n")
    write(tmp_path, "src/offbeat/net/wire/wire_pb2.py", "x = 1\n")
    assert script()[1] == ["      2  src/offbeat/net", "      2  tests", "      4  in all"]
    assert script("tests")[1] == ["      2  tests", "      2  in all"]
    assert script("src/offbeat/net")[1] == [
        "      1  src/offbeat/net", "      1  src/offbeat/net/wire", "      2  in all",
    ]  # fmt: skip


def test_what_a_change_adds_is_told_also_of_folders_that_are_gone(script: Any, tmp_path: Path) -> None:
    write(tmp_path, "src/offbeat/old/ä.py", "x = 'ä'\ny = 2\n")
    write(tmp_path, "src/offbeat/net/b.py", "x = 1\n")
    commit(tmp_path)
    (tmp_path / "src/offbeat/old/ä.py").unlink()
    write(tmp_path, "src/offbeat/net/b.py", "x = 1\ny = 2\n")
    write(tmp_path, "papers/src/offbeat_papers/a.py", "x = 1\n")
    assert script("--against", "HEAD") == (
        0,
        [
            "      1      +1  papers/src/offbeat_papers",
            "      2      +1  src/offbeat/net",
            "      0      -2  src/offbeat/old",
            "      3      +0  in all",
        ],
        "",
    )


def test_a_commit_that_is_not_there_is_one_line(script: Any, tmp_path: Path) -> None:
    write(tmp_path, "src/offbeat/a.py", "x = 1\n")
    commit(tmp_path)
    code, out, errors = script("--against", "nothing")
    assert (code, out, errors.count("\n")) == (2, [], 1)
    assert "nothing" in errors
