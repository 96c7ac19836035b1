"""The command line in the test's own process."""

import io
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer

from offbeat import cli
from offbeat.cli import console

NAMES = (
    "cohort", "hospitals", "linear", "normalised", "two_parts", "loss", "step", "evaluate", "positives",
    "stopping", "jumping", "Counter",
)  # fmt: skip
ALLOWED = tuple(f"tests.corpus.own:{name}" for name in NAMES)
"""Functions of `tests.corpus.own` that records and recipes of the corpus name."""

OWN = tuple(word for name in ALLOWED for word in ("--allow", name))
"""Options of a command that lets a record or a recipe name these functions."""

command = cache(typer.main.get_command)
"""The commands with their options: to make them takes Typer longer than most commands take."""


def own_options(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Options of a command that reads an entry: it may name functions of a module of ours."""
    return OWN if entry.get("own") else ()


def offbeat(*words: str | Path) -> tuple[int, str]:
    """Run a command; returns its exit code, and what it has printed."""
    printed = io.StringIO()
    given = ["offbeat", *map(str, words)]
    with (
        patch("typer.main.get_command", command),
        patch.object(sys, "argv", given),
        patch.object(console.out, "_width", 200),
        patch.object(console.err, "_width", 200),
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return code, printed.getvalue()
