"""Restoring from copies that are damaged, hostile or newer than what they are restored over."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from typer.testing import CliRunner

from offbeat.backup.backup import backup
from offbeat.backup.manifest import MANIFEST, CopiedFile, Manifest
from offbeat.backup.restore import restore
from offbeat.cli.commands import app
from offbeat.core.errors import DamageError, OffbeatError, RunError, UsageError
from offbeat.runs.lock import lock
from offbeat.runs.record import find_runs
from offbeat.runs.verify import verify
from tests.backup.served_run import NOISE, ServedRun, recovered
from tests.corpus.archive import formats, sample, unpack

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two copies of a run."""
    place = tmp_path_factory.mktemp("made")
    run = ServedRun(place / "a", NOISE)
    for steps in (7, 5):
        run.steps(steps)
        backup(run.directory, place / "copies")
    run.checkpoint()
    run.store.close()
    return place / "copies"


@pytest.fixture
def copies(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "copies")
    return tmp_path / "copies"


def newest(copies: Path) -> Path:
    return sorted(path for path in copies.iterdir() if path.is_dir())[-1]


def told(copy: Path, change: Callable[[Manifest], Manifest]) -> None:
    """Write another manifest, with the checksum that belongs to it."""
    (copy / MANIFEST).write_bytes(change(Manifest.read(copy)).text())


def naming(name: str, size: int = 1) -> Callable[[Manifest], Manifest]:
    file = CopiedFile(size, "0" * 64)
    return lambda manifest: msgspec.structs.replace(manifest, files={**manifest.files, name: file})


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/etc/passwd", "a//b", "", ".", "a\\b", "a\0b", "run.db-wal", "lock",
             "server.json", "x" * 1001, "/".join("x" * 21)],
)  # fmt: skip
def test_a_manifest_names_no_file_outside_of_the_copy(copies: Path, tmp_path: Path, name: str) -> None:
    told(newest(copies), naming(name))
    with pytest.raises(DamageError, match="which is no file of a copy"):
        restore(newest(copies), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def write(text: str) -> Callable[[Path], object]:
    return lambda copy: (copy / MANIFEST).write_text(text, encoding="utf-8")


def flip(path: Path, at: int = -10) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (lambda copy: flip(copy / "run.db"), "is not as it was copied"),
    "manifest flipped": (lambda copy: flip(copy / MANIFEST, 200), "manifest"),
    "manifest cut": (lambda copy: os.truncate(copy / MANIFEST, 100), "is no whole manifest"),
    "manifest empty": (lambda copy: os.truncate(copy / MANIFEST, 0), "is no whole manifest"),
    "another type": (write("[]"), "is no whole manifest"),
    "not UTF-8": (lambda copy: (copy / MANIFEST).write_bytes(b"\xff"), "is no whole manifest"),
    "deep": (write("[" * 10**5), "is no whole manifest"),
    "larger": (lambda copy: os.truncate(copy / "run.db", 2**40), "has 1099511627776 bytes, and the copy had"),
    "missing": (lambda copy: (copy / "secrets.db").unlink(), "secrets.db is missing"),
    "link": (
        lambda copy: ((copy / "secrets.db").unlink(), (copy / "secrets.db").symlink_to("/etc/passwd")),
        "is a link",
    ),
    "later form": (
        lambda copy: told(copy, lambda m: msgspec.structs.replace(m, offbeat_backup=2)), "has form 2",
    ),
    "huge": (
lambda copy: told(copy, naming("x", 2**61)),
        "x is missing",
    ),
    "no database": (
        lambda copy: told(copy, lambda m: msgspec.structs.replace(m, files={})), "names no run.db",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_copy_is_one_sentence_that_names_the_copy_before_it(
    copies: Path, tmp_path: Path, damage: str
) -> None:
    before = sorted(path for path in copies.iterdir() if path.is_dir())[0]
    done, words = DAMAGES[damage]
    done(newest(copies))
    with pytest.raises(DamageError, match=words) as error:
        restore(newest(copies), tmp_path / "b")
    assert f"restore the one before it: offbeat restore {before} DIR" in str(error.value)
    assert "\n" not in str(error.value)
    assert {path.name for path in tmp_path.iterdir()} == {"copies"}
    assert restore(before, tmp_path / "b").copy == before


def test_a_whole_file_of_another_moment_is_noticed(copies: Path, tmp_path: Path) -> None:
    """Files that match their manifest, and not each other."""
    first, last = sorted(path for path in copies.iterdir() if path.is_dir())
    state = next(name for name in Manifest.read(first).files if name.startswith("state"))
    file = Manifest.read(first).files["run.db"]
    shutil.copyfile(first / state, last / "run.db")
    told(last, lambda m: msgspec.structs.replace(m, files={**m.files, "run.db": m.files.get(state, file)}))
    with pytest.raises(DamageError, match=r"run\.db"):
        restore(last, tmp_path / "b")


def test_a_directory_that_is_not_empty_stays_as_it_is(copies: Path, tmp_path: Path) -> None:
    target = tmp_path / "b"
    target.mkdir()
    (target / "mine").write_text("mine", encoding="utf-8")
    for place, words in {
        target: r"is not empty \(it has mine\): nothing was restored",
        target / "mine": "is no directory",
    }.items():
        with pytest.raises(UsageError, match=words):
            restore(copies, place)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is no directory"):
        restore(copies, tmp_path / "link")
    assert [path.name for path in target.iterdir()] == ["mine"]
    (target / "mine").unlink()
    assert restore(copies, target).record.path == target


def test_what_is_no_copy(made: Path, tmp_path: Path) -> None:
    for source, words in {
        tmp_path / "missing": "is no directory",
        tmp_path: "has no copies",
        made.parent / "a": "is a run and no copy of offbeat backup",
    }.items():
        with pytest.raises(UsageError, match=words):
            restore(source, tmp_path / "b")


def test_killed_or_full_in_the_middle(copies: Path, tmp_path: Path) -> None:
    """Whenever it ends, there is no directory, and the next attempt works."""
    dead, alive = tmp_path / ".b.restoring-dead", tmp_path / ".b.restoring-alive"
    for part in (dead, alive):
        part.mkdir()
        (part / "run.db").write_bytes(b"half")
    held = lock(alive)
    calls = 0

    def full(_: int) -> None:
        nonlocal calls
        calls += 1
        raise OSError(28, "No space left on device")

    with (
        patch("offbeat.backup.copying.os.fsync", full),
        pytest.raises(RunError, match=r"No space left on device; .*b is as it was"),
    ):
        restore(copies, tmp_path / "b")
    assert calls
    assert not (tmp_path / "b").exists()
    assert not dead.exists()
    assert alive.exists()
    restored = restore(copies, tmp_path / "b")
    assert recovered(tmp_path / "b", NOISE)[0] == restored.record.length
    held.release()


def test_on_the_command_line(made: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["backup", str(made.parent / "a"), str(tmp_path / "copies"), "--keep", "1"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"copied to {tmp_path / 'copies'}/2")
    assert "This run has noise or masked updates: the copy has what its server keeps secret" in done.output
    again = runner.invoke(app, ["restore", str(tmp_path / "copies"), str(tmp_path / "b")])
    assert again.exit_code == 0, again.output
    assert "every file was verified" in again.output
    assert "is not counted in ε here" in again.output
    assert runner.invoke(app, ["backup", "x", "y", "--keep", "0"]).exit_code == 2
    wrong = runner.invoke(app, ["backup", "x", "y", "--every", "5"])
    assert isinstance(wrong.exception, UsageError)
    assert "--every 5 is not allowed" in str(wrong.exception)
    refused = runner.invoke(app, ["restore", str(tmp_path / "copies"), str(tmp_path / "b")])
    assert isinstance(refused.exception, OffbeatError)


@pytest.mark.parametrize(
    ("number", "name"), [(n, name) for n in formats() for name in sample(n, "served killed")[:3]]
)
def test_a_run_of_the_corpus_comes_back_whole(tmp_path: Path, number: int, name: str) -> None:
    for record in find_runs(unpack(number, name, tmp_path)):
        copy = backup(record.path, tmp_path / "copies").folder
        again = restore(copy, tmp_path / "again").record
        assert list(again.rows()) == list(record.rows())
        assert verify(again.path).problems == []
