"""Runs on Flower of earlier formats: one that was stopped goes on, one that has ended says so."""

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from offbeat.runs.record import read_run
from offbeat.sim.replay import replay
from tests.corpus.archive import formats, names, unpack
from tests.corpus.command_line import offbeat
from tests.corpus.on_flower import algorithm, serve_on_flower

RUN = "run"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("number", "name"), [(n, name) for n in formats() for name in names(n, "flower stopped")]
)
def test_a_server_that_was_stopped_goes_on(number: int, name: str, tmp_path: Path) -> None:
    """Its nodes have been started anew meanwhile: what they worked on is lost, what had arrived stays."""
    run = unpack(number, name, tmp_path) / RUN
    before = read_run(run).journal
    assert serve_on_flower(run) == "reached 24 client tasks"
    record = read_run(run)
    assert record.journal[: len(before)] == before
    assert len(record.entries("arrived")) == 24
    assert replay(record, algorithm()).difference is None
    assert offbeat("verify", run)[0] == 0


@pytest.mark.parametrize(("number", "name"), [(n, name) for n in formats() for name in names(n, "flower")])
def test_a_server_of_an_ended_run_says_so(number: int, name: str, tmp_path: Path) -> None:
    run = unpack(number, name, tmp_path) / RUN
    before = read_run(run).journal
    assert serve_on_flower(run) == "reached 24 client tasks"
    assert read_run(run).journal == before


@pytest.mark.parametrize(("number", "name"), [(n, name) for n in formats() for name in names(n, "flower")])
def test_an_ended_run_goes_on_under_other_limits(number: int, name: str, tmp_path: Path) -> None:
    run = unpack(number, name, tmp_path) / RUN
    before = read_run(run).journal
    assert serve_on_flower(run, tasks=30) == "reached 30 client tasks"
    record = read_run(run)
    assert record.journal[: len(before)] == before
    assert len(record.entries("arrived")) == 30
    assert replay(record, algorithm()).difference is None
    assert offbeat("verify", run)[0] == 0
