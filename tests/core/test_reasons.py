"""Errors of the system are told in words: no text has the number that Python puts before the reason."""

import ast
from collections.abc import Iterator
from errno import ENOSPC
from pathlib import Path
from urllib.error import URLError

import pytest

import offbeat
import offbeat_papers
from offbeat.core.errors import reason_of

SOURCES = [
    path for package in (offbeat, offbeat_papers) for path in Path(package.__file__).parent.rglob("*.py")
]
OF_THE_SYSTEM = {"OSError", "PermissionError", "FileNotFoundError", "ConnectionError"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(ENOSPC, "No space left on device"), "No space left on device"),
        (PermissionError(13, "Permission denied", "run.db"), "Permission denied"),
        (FileExistsError(17, "File exists", "a"), "a file has this name"),
        (URLError(OSError(-2, "Name or service not known")), "Name or service not known"),
        (OSError("it is no regular file"), "it is no regular file"),
        (ValueError("not JSON"), "not JSON"),
    ],
)
def test_the_reason_has_no_number(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


def raw_texts(source: str) -> Iterator[int]:
    """The lines of a module at which an error of the system is put into a text as Python shows it."""
    for handler in ast.walk(ast.parse(source)):
        if not isinstance(handler, ast.ExceptHandler) or handler.type is None or handler.name is None:
            continue
        if not OF_THE_SYSTEM & {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}:
            continue
        for node in ast.walk(handler):
            shown = node.value if isinstance(node, ast.FormattedValue) else None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
                shown = node.args[0]
            if isinstance(shown, ast.Name) and shown.id == handler.name:
                yield node.lineno


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_module_shows_an_error_of_the_system_as_python_does(path: Path) -> None:
    assert [*raw_texts(path.read_text(encoding="utf-8"))] == []


def test_what_is_found() -> None:
    raw = "try: pass\nexcept (OSError, ValueError) as error:\n    raise E(f'{error}')"
    assert [*raw_texts(raw)] == [3]
    assert [*raw_texts(raw.replace("{error}", "{reason_of(error)}"))] == []
    assert [*raw_texts(raw.replace("OSError", "KeyError"))] == []
