"""Functions of users by name: what is imported, what is refused, and how errors are told."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offbeat.core.errors import UsageError
from offbeat.named import load_named, name_of, named_errors

WARD = """
import json

def read():
    return json.loads("{")

class Box:
    pass
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFBEAT_OPENED_MODULES", "{}")
    texts = {"a_ward": WARD, "a_raising": "x = 1 / 0", "an_importing": "import nowhere", "a_broken": "def ("}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    yield
    for name in texts:
        sys.modules.pop(name, None)


def test_a_module_of_the_current_directory_is_found() -> None:
    assert load_named("a_ward:Box", "--data").__name__ == "Box"
    assert load_named("json:loads", "--data") is json.loads


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a_ward", r"^--data a_ward: give module:function$"),
        ("a_ward:nothing", r"^--data a_ward:nothing: the module a_ward has no nothing$"),
        ("no_ward:read", r"^--data no_ward:read: there is no module no_ward: install it, or .*directory$"),
        ("a_raising:x", r"^--data a_raising:x: .*a_raising.py:1: ZeroDivisionError: division by zero$"),
        ("an_importing:x", r"an_importing.py:1: ModuleNotFoundError: No module named 'nowhere'$"),
        ("a_broken:x", r"a_broken.py:1: SyntaxError: "),
    ],
)
def test_what_is_not_there_or_raises_is_told_in_one_line(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load_named(text, "--data")


def test_what_a_function_raises_has_the_users_file_and_line() -> None:
    read = load_named("a_ward:read", "--data")
    with (
        pytest.raises(UsageError, match=r"^--data a_ward:read: .*a_ward.py:5: JSONDecodeError: ") as caught,
        named_errors("a_ward:read", "--data"),
    ):
        read()
    assert isinstance(caught.value.__cause__, json.JSONDecodeError)  # for --debug


def test_a_function_called_with_other_arguments_has_no_line_of_its_own() -> None:
    read = load_named("a_ward:read", "--data")
    with (
        pytest.raises(UsageError, match=r"^--data a_ward:read: TypeError: read\(\) got an "),
        named_errors("a_ward:read", "--data"),
    ):
        read(hidden=8)


def test_names() -> None:
    assert name_of(json.loads) == "json:loads"
    assert name_of(Path) == "pathlib:Path"
    assert name_of(lambda: 1) == ":test_names.<locals>.<lambda>"
    assert name_of(Path()) == f":{type(Path()).__name__}"


STRANGERS = ("wandb", "torchvision", "yaml", "helper")
CLINIC = """
import offbeat as ob
from torch import nn

{}
@ob.expose
def make_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
RECIPE = """
clients: 2
data: {dataset: digits, samples: 60, test_samples: 20}
model: clinic:make_model
algorithm: {name: fedavg, steps: 1}
until: {versions: 1}
callbacks: [{name: wandb, mode: offline}]
"""


def offbeat(folder: Path, *words: str) -> tuple[int, str]:
    """A command in a process of its own and in a stranger's folder: the exit code, and what it says."""
    for name in STRANGERS:
        text = f"open('imported-{name}', 'w').close()\n"
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    (folder / "r.yaml").write_text(RECIPE, encoding="utf-8")
    left_out = ("PYTHONSAFEPATH", "OFFBEAT_OPENED_MODULES")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    command = [sys.executable, "-m", "offbeat.cli", "run", "r.yaml", "--out", "out", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def imported(folder: Path) -> list[str]:
    return sorted(path.name.removeprefix("imported-") for path in folder.glob("imported-*"))


def test_an_allowed_module_opens_the_directory_to_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "clinic.py").write_text(CLINIC.format(""), encoding="utf-8")
    code, said = offbeat(tmp_path, "--allow", "clinic")
    if importlib.util.find_spec("wandb") is None:
        assert (code, "wandb is not installed" in said) == (2, True), said
    code, said = offbeat(tmp_path, "--allow", "clinic", "--set", "callbacks=[csv]")
    assert code == 0, said
    assert imported(tmp_path) == []


def test_a_module_that_an_allowed_one_imports_needs_a_word_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "clinic.py").write_text(CLINIC.format("import helper"), encoding="utf-8")
    words = ("--allow", "clinic", "--set", "callbacks=[csv]")
    code, said = offbeat(tmp_path, *words)
    assert code == 2
    assert "No module named 'helper'; one is in the current directory: give --allow helper too" in said
    assert imported(tmp_path) == []
    code, said = offbeat(tmp_path, *words, "--allow", "helper", "--workers", "1")
    assert (code, imported(tmp_path)) == (0, ["helper"]), said
