"""What the corpus of the newest format has: every event and command, every algorithm, and its hard cases."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from offbeat.algorithms import ALGORITHMS
from offbeat.core.journal import COMMAND_NAMES, EVENT_NAMES, Row
from offbeat.runs.record import find_runs
from offbeat.runs.schema import FORMAT
from tests.corpus.archive import contents, folder_of, names, unpack
from tests.corpus.record import all_makers

NEVER: dict[str, str] = {}
"""Events and commands that no run of the corpus has, and why."""


@cache
def rows_of(name: str) -> list[Row]:
    """The journal's rows of all runs of an entry."""
    with TemporaryDirectory() as temporary:
        return [row for record in find_runs(unpack(FORMAT, name, Path(temporary))) for row in record.rows()]


def rows(kind: str) -> Iterator[Row]:
    """The rows of all entries of a kind, such as "served"."""
    for name in names(FORMAT):
        if contents(FORMAT)["entries"][name]["kind"].startswith(kind):
            yield from rows_of(name)


def test_there_is_a_corpus_of_the_format_that_is_written() -> None:
    """A version with another format records one: python -m tests.corpus.record."""
    archives = {path.name.removesuffix(".tar.xz") for path in folder_of(FORMAT).glob("*.tar.xz")}
    assert archives == set(names(FORMAT)) == set(all_makers())
    size = sum(path.stat().st_size for path in folder_of(FORMAT).iterdir())
    assert size < 2.5e6, "the corpus is to stay small"


def test_every_event_and_command_occurs() -> None:
    found = {row.name for name in names(FORMAT) for row in rows_of(name)}
    assert set(EVENT_NAMES + COMMAND_NAMES) - found == set(NEVER)


def test_every_event_and_command_of_a_network_occurs_in_a_served_run() -> None:
    """All but those of the radio, which a network has not."""
    radio = {"ready", "measured", "measure", "upload"}
    found = {row.name for row in rows("served")}
    assert set(EVENT_NAMES + COMMAND_NAMES) - found == radio


def test_every_algorithm_has_a_run_that_was_stopped_and_one_that_has_finished() -> None:
    for kind in ("simulated", "stopped"):
        entries = [contents(FORMAT)["entries"][name] for name in names(FORMAT, kind)]
        found = {run["algorithm"] for entry in entries for run in entry["runs"].values()}
        assert set(ALGORITHMS) - found == set()


@pytest.mark.parametrize(
    ("name", "what", "least"),
    [
        ("guard-refuses", "lost", 3),
        ("guard-skips", "skipped", 3),
        ("served-guard", "lost", 2),
        ("served-skips", "skipped", 2),
        ("served-skips-killed", "skipped", 1),
        ("served-rollback", "rolled_back", 1),
        ("served-away", "left", 1),
        ("served-compass", "timer", 2),
        ("served-asmu", "send", 5),
        ("fedasmu", "send", 5),
        ("port", "recall", 3),
        ("served-secure", "released", 3),
        ("noise-to-its-budget", "left", 2),
    ],
)
def test_the_hard_cases_happen(name: str, what: str, least: int) -> None:
    assert sum(row.name == what for row in rows_of(name)) >= least
