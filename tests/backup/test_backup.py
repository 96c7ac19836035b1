"""Copies of a run that is being written: each is the run as it was at one moment."""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import offbeat as ob
from offbeat.backup import run_copy
from offbeat.backup.backup import backup
from offbeat.backup.manifest import MANIFEST, Manifest, copies_in
from offbeat.backup.restore import restore
from offbeat.core.errors import DamageError, RunError, UsageError
from offbeat.net.server.stored_updates import StoredUpdates, damaged_updates
from offbeat.runs.lock import lock
from offbeat.runs.record import read_run
from offbeat.runs.verify import verify
from tests.backup.served_run import NOISE, ServedRun, recovered, seeds_in
from tests.sampling import examples

HOOKS = (
    "_opened", "_check_room", "_copy_updates", "_copy_secrets", "_check_same_checkpoint",
    "_copy_database", "_check_best", "_copy_others",
)  # fmt: skip
"""Steps of a copy before which the writer may go on."""
pytestmark = pytest.mark.usefixtures("one_thread")


@contextmanager
def meanwhile(act: Callable[[str], None]) -> Iterator[None]:
    """Call a function before each step of a copy, with the step's name."""

    def before(name: str, step: Callable[..., object]) -> Callable[..., object]:
        def stepped(*given: object, **named: object) -> object:
            act(name)
            return step(*given, **named)

        return stepped

    steps = {name: before(name, getattr(run_copy, name)) for name in HOOKS}
    with patch.multiple(run_copy, **steps):
        yield


@examples(40)
@example(noise=False, large=True, keep=False, before=3, acts=["sc"] * 24)
@given(
    noise=st.booleans(),
    large=st.booleans(),
    keep=st.booleans(),
    before=st.integers(0, 12),
    acts=st.lists(st.sampled_from(("", "s", "ss", "c", "sc", "scs")), max_size=24),
)
def test_a_copy_is_the_run_at_the_moment_of_reading(
    noise: bool,
    large: bool,
    keep: bool,
    before: int,
    acts: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The writer makes steps and checkpoints at any moment of the copy."""
    directory = tmp_path_factory.mktemp("run")
    privacy, pending = NOISE if noise else None, iter(acts)
    with patch("offbeat.net.server.durable_store.SMALL", 0 if large else 2**18):
        run = ServedRun(directory / "a", privacy, keep=keep)
        run.steps(before)
        begun = len(run.states)

        def act(_: str) -> None:
            for letter in next(pending, ""):
                run.step() if letter == "s" else run.checkpoint()

        def checkpoint(_: str) -> None:
            run.step()
            run.checkpoint()

        try:
            with meanwhile(act):
                made = backup(run.directory, directory / "copies")
        except RunError:
            assert sum("c" in each for each in acts) >= run_copy.ATTEMPTS
            with pytest.raises(RunError, match="had a new checkpoint during each of"), meanwhile(checkpoint):
                backup(run.directory, directory / "copies")
            return
        rows = made.copy.manifest.rows
        assert rows in list(run.states)[begun - 1 :]
        restored = restore(directory / "copies", directory / "b")
        assert restored.record.length == rows
        assert verify(directory / "b").problems == []
        assert list(damaged_updates(restored.record)) == []
        arrived = {row.task for row in restored.record.rows("event") if row.name == "arrived"}
        assert not keep or {task for task, _ in StoredUpdates(restored.record)} == arrived
        assert recovered(directory / "b", privacy) == run.states[rows]
    run.store.close()


def test_a_copy_has_no_seed_of_a_release_that_it_does_not_have(tmp_path: Path) -> None:
    """A server that has gone back must not use the noise of a release for other updates."""
    run = ServedRun(tmp_path / "a", NOISE)
    run.steps(8)
    known = seeds_in(run.directory)

    def act(name: str) -> None:
        if name == "_copy_secrets":
            run.steps(6)

    with meanwhile(act):
        made = backup(run.directory, tmp_path / "copies")
    later = seeds_in(run.directory)
    assert made.copy.withdrawn == len(later) - len(known) > 0
    assert seeds_in(made.folder) == known
    withdrawn, copied = set(later.values()) - set(known.values()), (made.folder / "secrets.db").read_bytes()
    assert not any(seed in copied for seed in withdrawn)
    run.store.close()


@pytest.mark.parametrize("privacy", [None, NOISE])
def test_a_restored_run_goes_on_to_its_end(tmp_path: Path, privacy: ob.Privacy | None) -> None:
    run = ServedRun(tmp_path / "a", privacy)
    run.steps(11)
    (run.directory / "tokens.json").write_text("{}", encoding="utf-8")
    (run.directory / "tls").mkdir()
    (run.directory / "tls" / "ca.key").write_text("key", encoding="utf-8")
    backup(run.directory, tmp_path / "copies")
    run.store.close()
    restored = restore(tmp_path / "copies", tmp_path / "b")
    assert (tmp_path / "b" / "tls" / "ca.key").read_text(encoding="utf-8") == "key"
    assert (tmp_path / "b" / "tls" / "ca.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o700
    with closing(sqlite3.connect(tmp_path / "b" / "run.db")) as database:
        (last,) = database.execute("SELECT line FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
    assert "run.restore" in last
    assert restored.record.status == "running"
    again = ServedRun(tmp_path / "b", privacy)
    assert again.coordinator.driver.engine.rows == restored.record.length
    again.finish()
    if privacy is None:  # noise is fresh
        whole = ServedRun(tmp_path / "whole")
        whole.finish()
        models = {(tmp_path / name / "model.safetensors").read_bytes() for name in ("b", "whole")}
        assert len(models) == 1
        assert [row.name for row in read_run(tmp_path / "b").rows()] == [
            row.name for row in read_run(tmp_path / "whole").rows()
        ]


def test_a_run_that_ends_meanwhile(tmp_path: Path) -> None:
    run = ServedRun(tmp_path / "a", NOISE)
    run.steps(9)
    ends = iter([run.finish])

    def act(name: str) -> None:
        if name == "_copy_secrets":
            for end in ends:
                end()

    with meanwhile(act):
        made = backup(run.directory, tmp_path / "copies")
    assert made.copy.record.status == "finished"
    assert not (made.folder / "secrets.db").exists()
    assert verify(made.folder).problems == []
    assert read_run(restore(made.folder, tmp_path / "b").record.path).status == "finished"


def test_a_simulation_and_an_archived_run(tmp_path: Path) -> None:
    from offbeat.runs.archive import archive

    ob.simulate(
        ob.fedbuff(2, steps=1),
        ob.World(seconds_per_step=1.0),
        ob.NoTraining(4, 3),
        until=ob.Until(tasks=40),
        wire=ob.Wire(down="bfloat16"),
        out=tmp_path / "run",
    )
    assert list((tmp_path / "run").glob("version-*-bfloat16.safetensors"))
    for copies in ("before", "after"):
        made = backup(tmp_path / "run", tmp_path / copies)
        restore(tmp_path / copies, tmp_path / f"from-{copies}")
        assert list(read_run(tmp_path / f"from-{copies}").rows()) == list(read_run(tmp_path / "run").rows())
        assert made.copy.manifest.status == "finished"
        assert verify(tmp_path / f"from-{copies}").problems == []
        with patch("offbeat.runs.journal_archive.ROWS", 64):
            archive(tmp_path / "run", 0.0)
    assert read_run(tmp_path / "from-after").has_table("journal_archive")


def test_older_copies_go_when_a_new_one_is_there(tmp_path: Path) -> None:
    run = ServedRun(tmp_path / "a")
    made = []
    for _ in range(4):
        run.steps(3)
        made.append(backup(run.directory, tmp_path / "copies", keep=2))
    assert copies_in(tmp_path / "copies") == [one.folder for one in made[-2:]]
    assert [one.deleted for one in made] == [0, 0, 1, 1]
    assert {path.name for path in (tmp_path / "copies").iterdir()} == {
        *(m.folder.name for m in made[-2:]),
        "lock",
    }
    run.store.close()


def test_a_damaged_run_is_not_copied_and_no_copy_is_deleted(tmp_path: Path) -> None:
    run = ServedRun(tmp_path / "a")
    run.steps(9)
    run.checkpoint()
    first = backup(run.directory, tmp_path / "copies", keep=1)
    run.store.close()
    state = next(run.directory.glob("state-*"))
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    with pytest.raises(
        DamageError, match=r"is damaged, so it was not copied \(state-\d+.safetensors does not"
    ):
        backup(run.directory, tmp_path / "copies", keep=1)
    state.unlink()
    with pytest.raises(DamageError, match="is missing"):
        backup(run.directory, tmp_path / "copies", keep=1)
    assert copies_in(tmp_path / "copies") == [first.folder]


def test_a_run_that_changes_faster_than_it_is_copied(tmp_path: Path) -> None:
    run = ServedRun(tmp_path / "a")
    run.steps(4)

    def act(name: str) -> None:
        if name == "_check_same_checkpoint":
            run.step()
            run.checkpoint()

    with meanwhile(act), pytest.raises(RunError, match="a new checkpoint during each of 8 attempts"):
        backup(run.directory, tmp_path / "copies")
    assert [path.name for path in (tmp_path / "copies").iterdir()] == ["lock"]
    run.store.close()


def test_a_full_disk(tmp_path: Path) -> None:
    """At any file: one sentence, and nothing is left of the copy."""
    run = ServedRun(tmp_path / "a")
    run.steps(9)
    first = backup(run.directory, tmp_path / "copies")
    sync, calls = os.fsync, iter(range(10**6))
    files = len(first.copy.manifest.files)
    for fails in range(files):
        calls = iter(range(10**6))

        def full(descriptor: int, calls: Iterator[int] = calls, fails: int = fails) -> None:
            if next(calls) == fails:
                raise OSError(28, "No space left on device")
            sync(descriptor)

        with (
            patch("offbeat.backup.copying.os.fsync", full),
            pytest.raises(RunError, match=r"No space left on device; the copies in .* are as they were"),
        ):
            backup(run.directory, tmp_path / "copies", keep=1)
        assert copies_in(tmp_path / "copies") == [first.folder]
    with (
        patch("offbeat.backup.run_copy.disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 9)),
        pytest.raises(RunError, match="has no room for a copy"),
    ):
        backup(run.directory, tmp_path / "copies")
    run.store.close()


def test_what_a_killed_backup_leaves_is_deleted_by_the_next(tmp_path: Path) -> None:
    run = ServedRun(tmp_path / "a")
    run.steps(5)
    part = tmp_path / "copies" / ".part-1234"
    part.mkdir(parents=True)
    (part / "run.db").write_bytes(b"half")
    (tmp_path / "copies" / ".part-5678").symlink_to(tmp_path / "a")
    backup(run.directory, tmp_path / "copies")
    assert not part.exists()
    assert (tmp_path / "a" / "run.db").exists()
    run.store.close()


def test_two_backups_at_once(tmp_path: Path) -> None:
    run = ServedRun(tmp_path / "a")
    (tmp_path / "copies").mkdir()
    held = lock(tmp_path / "copies")
    with pytest.raises(UsageError, match="another backup is writing to"):
        backup(run.directory, tmp_path / "copies")
    held.release()
    run.store.close()


def test_what_is_refused(tmp_path: Path) -> None:
    run = ServedRun(tmp_path / "a")
    run.steps(3)
    site, helper, empty = tmp_path / "site", tmp_path / "helper", tmp_path / "empty"
    for place in (site, helper, empty):
        place.mkdir()
    (site / "client.safetensors").write_bytes(b"x")
    (helper / "helper.db").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    refused = {
        (tmp_path / "missing", empty): "is no directory",
        (site, empty): "is a site's state, which is not backed up",
        (helper, empty): "is a helper's state, which is never copied",
        (empty, tmp_path / "copies"): "is not a run",
        (run.directory, run.directory): "is inside of",
        (run.directory, run.directory / "copies"): "is inside of",
        (run.directory, tmp_path / "link" / "copies"): "is inside of",
        (tmp_path / "link", run.directory / "copies"): "is inside of",
        (run.directory, site): "is a run, a site's state or a copy itself",
        (run.directory, site / "client.safetensors"): "is no directory: give a folder",
    }
    for (directory, target), words in refused.items():
        with pytest.raises(UsageError, match=words):
            backup(directory, target)
    with pytest.raises(UsageError, match="keep = 0 is not allowed"):
        backup(run.directory, empty, keep=0)
    assert not any(empty.iterdir())
    made = backup(run.directory, tmp_path / "copies")
    with pytest.raises(UsageError, match="a copy itself"):
        backup(run.directory, made.folder)
    other = ServedRun(tmp_path / "other")
    other.store._files.store.set_meta({"run": "another"})
    with pytest.raises(UsageError, match="has copies of another run"):
        backup(other.directory, tmp_path / "copies")
    for one in (run, other):
        one.store.close()


def test_links_are_not_followed(tmp_path: Path) -> None:
    run = ServedRun(tmp_path / "a")
    run.steps(9)
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    (run.directory / "tokens.json").symlink_to(tmp_path / "secret")
    (run.directory / "tls").symlink_to(tmp_path)
    os.mkfifo(run.directory / "pipe")
    made = backup(run.directory, tmp_path / "copies")
    assert set(made.copy.left_out) == {"tokens.json", "tls", "pipe"}
    assert "secret" not in "".join(p.name for p in made.folder.rglob("*"))
    run.checkpoint()
    state = next(run.directory.glob("state-*"))
    state.rename(tmp_path / "elsewhere")
    state.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="cannot be copied"):
        backup(run.directory, tmp_path / "copies")
    run.store.close()


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    run = ServedRun(tmp_path / "a")
    run.steps(9)
    run.checkpoint()
    with patch("offbeat.backup.run_copy.MOST_OPEN", 1):
        made = backup(run.directory, tmp_path / "copies")
    assert len([name for name in made.copy.manifest.files if name.endswith(".safetensors")]) > 1
    assert Manifest.read(made.folder) == Manifest.read(made.folder)
    assert (made.folder / MANIFEST).stat().st_mode & 0o777 == 0o600
    run.store.close()
