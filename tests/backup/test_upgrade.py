"""Directories of earlier formats: the ones of the corpus, and those that have something to be changed."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offbeat.backup.backup import backup
from offbeat.backup.restore import restore
from offbeat.backup.upgrade import upgrade
from offbeat.cli.commands import app
from offbeat.core.errors import DamageError, RunError, UsageError
from offbeat.runs.lock import lock
from offbeat.runs.record import find_runs, read_run
from offbeat.runs.verify import verify
from tests.backup.served_run import ServedRun, recovered
from tests.corpus.archive import formats, sample, unpack

pytestmark = pytest.mark.usefixtures("one_thread")


def of_format(directory: Path, number: int) -> ServedRun:
    """A run as a version of an earlier format wrote it."""
    run = ServedRun(directory)
    run.steps(9)
    run.store.close()
    with closing(sqlite3.connect(directory / "run.db")) as database, database:
        database.execute("DROP TABLE client_metrics")
        database.execute("DROP TABLE checksums")
        database.execute("UPDATE meta SET value = ? WHERE key = 'format'", (str(number),))
    return run


def test_format_4(tmp_path: Path) -> None:
    run = of_format(tmp_path / "a", 4)
    database = (tmp_path / "a" / "run.db").read_bytes()
    told = upgrade(tmp_path / "a", tmp_path / "copies", dry_run=True)
    assert (told.before, told.after, len(told.steps), told.copy) == (4, 5, 1, None)
    assert not (tmp_path / "copies").exists()
    assert (tmp_path / "a" / "run.db").read_bytes() == database
    done = upgrade(tmp_path / "a", tmp_path / "copies")
    assert read_run(tmp_path / "a").meta["format"] == 5
    assert done.copy is not None
    assert restore(done.copy, tmp_path / "b").record.meta["format"] == 4
    assert upgrade(tmp_path / "a", tmp_path / "copies").steps == ()
    for place in ("a", "b"):
        assert recovered(tmp_path / place) == run.states[run.coordinator.driver.engine.rows]


def test_files_that_others_can_read_are_told_and_prevent_nothing(tmp_path: Path) -> None:
    place = of_format(tmp_path / "a", 4).directory
    place.chmod(0o755)
    (place / "run.db").chmod(0o644)
    done = CliRunner().invoke(app, ["upgrade", str(place)])
    assert (done.exit_code, read_run(place).meta["format"]) == (0, 5)
    told = f"{place} and 3 more can be read or written by others (mode 0755); lost: nothing"
    assert done.stderr == f"warning: {told}; chmod -R go= {place}\n"


def test_what_cannot_be_upgraded(tmp_path: Path) -> None:
    run = of_format(tmp_path / "a", 3)
    with pytest.raises(RunError, match=r"finish it with the version of Offbeat .* Nothing was changed"):
        upgrade(tmp_path / "a", tmp_path / "copies")
    held = lock(run.directory)
    with pytest.raises(UsageError, match="another process is writing"):
        upgrade(tmp_path / "a", tmp_path / "copies")
    held.release()
    of_format(tmp_path / "later", 7)
    with pytest.raises(UsageError, match="format 7 is not known to this version"):
        upgrade(tmp_path / "later", tmp_path / "copies")
    of_format(tmp_path / "damaged", 4)
    next((tmp_path / "damaged").glob("state-*")).write_bytes(b"x")
    with pytest.raises((RunError, DamageError), match="nothing was changed"):
        upgrade(tmp_path / "damaged", tmp_path / "copies")
    assert not (tmp_path / "copies").exists()


@pytest.mark.parametrize(
    ("number", "name"), [(n, name) for n in formats() for name in sample(n, "served killed")[:3]]
)
def test_the_corpus_is_taken_as_it_is(tmp_path: Path, number: int, name: str) -> None:
    place = unpack(number, name, tmp_path)
    for record in find_runs(place):
        done = CliRunner().invoke(app, ["upgrade", str(record.path)])
        assert done.exit_code == 0, done.exception
        assert done.output.startswith("nothing to do")
        copy = backup(record.path, tmp_path / "copies").folder
        again = restore(copy, tmp_path / "again").record
        assert list(again.rows()) == list(record.rows())
        assert verify(again.path).problems == []
