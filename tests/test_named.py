"""Functions of users by name: what is imported, what is refused, and how errors are told."""

import json
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
    monkeypatch.setattr(sys, "path", list(sys.path))
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
