"""Commands that other distributions add."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from offbeat.cli import plug_ins
from offbeat.core.installation import install_hint
from tests.cli.answer import Answer

COUNT = '''
from typing import Annotated
import typer

def count(words: list[str], loud: Annotated[bool, typer.Option("--loud", help="shout")] = False) -> None:
    """Count words."""
    print(f"{len(words)} words" + "!" * loud)
'''

Call = Callable[..., Answer]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a distribution with a module of its name and with these commands."""

    def make(name: str, code: str, **commands: str) -> None:
        folder = tmp_path / name
        about = folder / f"{name}-1.5.dist-info"
        about.mkdir(parents=True)
        (folder / f"{name}.py").write_text(code)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        entries = "".join(f"{command} = {value}\n" for command, value in commands.items())
        (about / "entry_points.txt").write_text(f"[{plug_ins.GROUP}]\n{entries}")
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return make


def test_a_command_of_another_distribution_is_one_of_ours(
    offbeat: Call, install: Callable[..., None]
) -> None:
    code, out, errors = offbeat("count-words", "a")
    assert (code, out) == (2, "")
    assert errors.startswith("offbeat: No such command 'count-words'; see ")
    install("plugged_count", COUNT, **{"count-words": "plugged_count:count"})
    assert offbeat("count-words", "a", "b", "--loud") == (0, "2 words!\n", "")
    code, out, _ = offbeat("--help")
    assert code == 0
    assert "count-words" in out
    assert "Count words." in out
    code, out, _ = offbeat("count-words", "--help")
    assert code == 0
    # Versions of typer write an argument in two ways.
    assert re.search(r"offbeat count-words \[OPTIONS\] (WORDS|\{words\})\.\.\.", out)
    assert "shout" in out
    code, out, errors = offbeat("count-words", "a", "--laud")
    assert (code, out) == (2, "")
    assert errors.startswith("offbeat: No such option")
    assert errors.endswith("offbeat count-words --help\n")


def test_a_command_of_ours_cannot_be_replaced(offbeat: Call, install: Callable[..., None]) -> None:
    install("plugged_thief", COUNT, algorithms="plugged_thief:count")
    assert "fedbuff" in offbeat("algorithms")[1]
    assert offbeat("--help")[1].count("\n  algorithms ") == 1


@pytest.mark.parametrize(
    ("code", "value", "why"),
    [
        ("raise ImportError('no\\nlibrary')", "plugged_broken:run", "ImportError: no library"),
        ("", "plugged_broken:run", "AttributeError: module 'plugged_broken' has no attribute 'run'"),
        ("", "plugged_nothing:run", "ModuleNotFoundError: No module named 'plugged_nothing'"),
        ("run = 3", "plugged_broken:run", "TypeError: 3 is not a callable object"),
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_loaded_says_whose_it_is_and_disturbs_no_other(
    offbeat: Call, install: Callable[..., None], code: str, value: str, why: str
) -> None:
    install("plugged_broken", code, broken=value)
    begin = f"offbeat: offbeat broken of plugged_broken 1.5 cannot be loaded: {why}"
    end = "; install it again, or remove it\n"
    for words in ((), ("--help",), ("x", "--unknown")):
        failed, out, errors = offbeat("broken", *words)
        assert (failed, out, errors.count("\n")) == (1, "", 1)
        assert errors.startswith(begin)
        assert errors.endswith(end)
    shown, out, _ = offbeat("--help")
    assert shown == 0
    assert "(cannot be loaded)" in out
    assert "fedbuff" in offbeat("algorithms")[1]


def test_a_command_of_an_extra_that_is_not_installed_says_how_to_get_it(
    offbeat: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plug_ins.EXTRAS, "far-away", "moon")
    begin = f"offbeat: offbeat far-away is not installed: {install_hint('moon')}"
    for words in ((), ("--help",), ("x", "--unknown")):
        code, out, errors = offbeat("far-away", *words)
        assert (code, out, errors.count("\n")) == (2, "", 1)
        assert errors.startswith(begin)
    assert "far-away" not in offbeat("--help")[1]


def test_an_error_of_such_a_command_is_one_line(offbeat: Call, install: Callable[..., None]) -> None:
    text = "from offbeat.core.errors import UsageError\ndef run() -> None:\n    raise UsageError('not so')\n"
    install("plugged_refusing", text, refuse="plugged_refusing:run")
    assert offbeat("refuse") == (2, "", "offbeat: not so\n")
