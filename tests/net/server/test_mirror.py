"""A mirror of a server's directory: it has all that was acknowledged, or the operator is told."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import offbeat as ob
from offbeat.core.errors import RunError, UsageError
from offbeat.net.audit import operator
from offbeat.net.auth.tokens import make_token
from offbeat.net.messages import Leave
from offbeat.net.monitor.from_journal import snapshot_of
from offbeat.net.monitor.prometheus import exposition
from offbeat.net.server.durable_store import DurableStore
from offbeat.net.server.mirror import DirectoryMirror, mirror_of
from offbeat.net.server.state_files import StateFiles
from offbeat.net.server.stored_updates import StoredUpdates, damaged_updates
from offbeat.runs.record import read_run
from offbeat.runs.verify import verify
from tests.backup.served_run import NOISE, ServedRun, coordinator_of, recovered, seeds_in
from tests.sampling import examples

pytestmark = pytest.mark.usefixtures("one_thread")


@contextmanager
def broken(directory: Path, error: Exception | None = None) -> Iterator[None]:
    """The disk of a directory cannot be written."""
    commit, checkpoint = StateFiles.commit, StateFiles.checkpoint

    def failing(real: object) -> object:
        def write(files: StateFiles, *given: object) -> None:
            if files.directory == directory:
                raise error or OSError(5, "Input/output error")
            real(files, *given)  # type: ignore[operator]

        return write

    with (
        patch.multiple(StateFiles, commit=failing(commit), checkpoint=failing(checkpoint)),
        patch("offbeat.net.server.mirror.copy_checkpoint", side_effect=OSError(5, "Input/output error")),
    ):
        yield


def served(directory: Path, mirror: Path, privacy: ob.Privacy | None = None, **options: object) -> ServedRun:
    return ServedRun(directory, privacy, mirror=DirectoryMirror(mirror, **options))  # type: ignore[arg-type]


@examples(40)
@given(
    noise=st.booleans(),
    large=st.booleans(),
    steps=st.lists(st.sampled_from("sssc"), min_size=4, max_size=40),
    killed=st.booleans(),
)
def test_the_mirror_is_what_the_directory_is(
    noise: bool, large: bool, steps: list[str], killed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("mirrored")
    privacy = NOISE if noise else None
    with patch("offbeat.net.server.durable_store.SMALL", 0 if large else 2**18):
        run = served(place / "a", place / "m", privacy)
        for step in steps:
            run.step() if step == "s" else run.checkpoint()
        if noise:
            assert seeds_in(place / "a") == seeds_in(place / "m")
        copy = place / "copy"
        if killed:  # what a killed process leaves
            shutil.copytree(place / "m", copy)
        run.store.abandon("interrupted")
        place_of = copy if killed else place / "m"
        shutil.rmtree(place / "a")
        assert verify(place_of).problems == []
        assert recovered(place_of, privacy) == run.states[run.coordinator.driver.engine.rows]


def test_a_finished_run_is_whole_in_both(tmp_path: Path) -> None:
    run = served(tmp_path / "a", tmp_path / "m", NOISE)
    run.finish()
    names = [{path.name for path in (tmp_path / name).iterdir()} - {"lock"} for name in "am"]
    assert names[0] == names[1]
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "m/model.safetensors").read_bytes()
    assert read_run(tmp_path / "m").status == "finished"


@pytest.mark.parametrize("small", [0, 2**18])
def test_a_mirror_has_the_updates_that_are_kept(small: int, tmp_path: Path) -> None:
    """Those from before it was made too, and those of a mirror that is made anew with a log of its own."""
    a, m = tmp_path / "a", tmp_path / "m"
    with patch("offbeat.net.server.durable_store.SMALL", small):
        first = ServedRun(a, keep=True)
        first.steps(7)
        first.checkpoint()
        first.steps(3)
        first.store.abandon("interrupted")
        run = ServedRun(a, keep=True, mirror=DirectoryMirror(m))
        run.steps(4)
        with broken(m):
            run.steps(5)
            run.checkpoint()
        run.steps(3)
        run.checkpoint()
        run.steps(2)
        run.store.abandon("interrupted")
    kept = [{task for task, _ in StoredUpdates(read_run(place))} for place in (a, m)]
    assert kept[0] == kept[1] == first.acknowledged | run.acknowledged
    assert [*damaged_updates(read_run(a)), *damaged_updates(read_run(m))] == []


def test_a_mirror_that_fails_is_an_alarm_and_is_made_anew(tmp_path: Path) -> None:
    a, m = tmp_path / "a", tmp_path / "m"
    run = served(a, m)
    run.steps(5)
    with broken(m):
        run.steps(4)
        run.checkpoint()
        view = run.store.mirror.view
        assert view is not None
        assert view.problem is not None
        assert "Input/output error" in view.problem
        told = snapshot_of(read_run(a))
        assert told.alarms == [f"the mirror {m} is behind: {view.problem}"]
        assert b"offbeat_mirror_whole 0.0" in exposition(told)
        assert run.store.due(0) is False
        run.store._pause = -1.0
        assert run.store.due(0)
    run.steps(2)
    run.checkpoint()
    run.steps(3)
    assert snapshot_of(read_run(a)).alarms == []
    assert b"offbeat_mirror_whole 1.0" in exposition(snapshot_of(read_run(a)))
    run.store.close()
    with closing(sqlite3.connect(a / "run.db")) as database:
        lines = [
            line for (line,) in database.execute("SELECT line FROM audit WHERE line LIKE '%\"mirror\"%'")
        ]
    assert ["failed" in line for line in lines] == [False, True, False]
    shutil.rmtree(a)
    assert recovered(m) == run.states[run.coordinator.driver.engine.rows]


def test_a_mirror_that_is_required_stops_the_run(tmp_path: Path) -> None:
    run = served(tmp_path / "a", tmp_path / "m", required=True)
    run.steps(5)
    with broken(tmp_path / "m"), pytest.raises(RunError, match=r"server.mirror_required is true: no ackn"):
        run.step()
    run.store.abandon("failed")
    with broken(tmp_path / "m"), pytest.raises(RunError, match=r"server\.mirror_required"):
        served(tmp_path / "b", tmp_path / "m2", required=True)
    with pytest.raises(UsageError, match="needs a mirror"):
        mirror_of(None, required=True)


def test_a_disk_that_does_not_answer(tmp_path: Path) -> None:
    run = served(tmp_path / "a", tmp_path / "m", seconds=60.0)
    run.steps(5)
    answers, commit = Event(), StateFiles.commit

    def hangs(files: StateFiles, *given: object) -> None:
        if files.directory == tmp_path / "m":
            answers.wait()
        commit(files, *given)  # type: ignore[arg-type]

    # The disk has so little time only where it never answers: a loaded machine may take longer.
    run.store.mirror._seconds = 0.2  # type: ignore[attr-defined]
    with patch.object(StateFiles, "commit", hangs):
        run.step()
    view = run.store.mirror.view
    assert view is not None
    assert view.problem == "its disk has not answered for 0 s"
    run.steps(2)
    answers.set()
    run.store.mirror._seconds = 60.0  # type: ignore[attr-defined]
    run.checkpoint()
    run.steps(2)
    run.store.close()
    assert recovered(tmp_path / "m") == run.states[run.coordinator.driver.engine.rows]


def test_a_disk_that_does_not_answer_delays_the_end_for_a_while_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = served(tmp_path / "a", tmp_path / "m", seconds=60.0)
    run.steps(5)
    answers = Event()

    def hangs(files: StateFiles, *given: object) -> None:
        if files.directory == tmp_path / "m":
            answers.wait()
        abandon(files, *given)  # type: ignore[arg-type]

    abandon = StateFiles.abandon
    run.store.mirror._seconds = 0.2  # type: ignore[attr-defined]
    with patch.object(StateFiles, "abandon", hangs):
        run.store.abandon("interrupted")
    assert "the server ends without its mirror" in caplog.text
    assert "its disk has not answered for 0 s" in caplog.text
    assert [thread.daemon for thread in enumerate_threads() if thread.name == "offbeat-mirror"] == [True]
    answers.set()
    again(tmp_path / "a", tmp_path / "m")
    assert recovered(tmp_path / "m") == recovered(tmp_path / "a")


def test_a_directory_that_cannot_be_written_names_the_mirror(tmp_path: Path) -> None:
    run = served(tmp_path / "a", tmp_path / "m")
    run.steps(5)
    with broken(tmp_path / "a"), pytest.raises(RunError, match=r"or serve the mirror, with --state .*m$"):
        run.step()
    run.store.abandon("failed")


def test_tokens_and_keys_are_in_the_mirror(tmp_path: Path) -> None:
    a, m = tmp_path / "a", tmp_path / "m"
    (a / "tls").mkdir(mode=0o700, parents=True)
    a.chmod(0o700)
    (a / "tls" / "ca.key").write_text("key", encoding="utf-8")
    run = served(a, m)
    make_token(a / "tokens.json", "north")
    run.step()
    assert (m / "tls" / "ca.key").read_text(encoding="utf-8") == "key"
    make_token(a / "tokens.json", "east")
    whole = (a / "tokens.json").read_bytes()
    for data in (whole, b"", whole[:50], None):
        (a / "tokens.json").unlink()
        if data is not None:
            (a / "tokens.json").write_bytes(data)
        run.store.audit.record(operator(), {"action": "token.renew"})
        run.store.write_audit()
        assert (m / "tokens.json").read_bytes() == whole, "the last whole file stays"
    assert (m / "tokens.json").stat().st_mode & 0o777 == 0o600
    run.store.close()


def again(directory: Path, mirror: Path) -> None:
    DurableStore(directory, coordinator_of(None), mirror=DirectoryMirror(mirror)).close()


def test_what_would_lose_something_is_refused(tmp_path: Path) -> None:
    a, m = tmp_path / "a", tmp_path / "m"
    run = served(a, m)
    run.steps(6)
    run.store.close()
    old = tmp_path / "old"
    shutil.copytree(a, old)
    again(a, m)
    other, foreign, file = tmp_path / "other", tmp_path / "foreign", tmp_path / "file"
    another = ServedRun(other)
    another.store._files.store.set_meta({"run": "another"})
    another.store.close()
    foreign.mkdir()
    for place in (foreign / "photo", file):
        place.write_text("x", encoding="utf-8")
    refused = {
        (tmp_path / "new", m): "has no run, and its mirror .* has one: serve that, with --state",
        (a, a): "one is in the other",
        (a, a / "m"): "one is in the other",
        (a, other): "has another run",
        (a, foreign): "has photo, and no run",
        (a, file): "is no directory",
    }
    for (directory, mirror), words in refused.items():
        with pytest.raises(UsageError, match=words):
            again(directory, mirror)
    assert not (tmp_path / "new").exists()
    # The mirror is served by itself, and goes further than the old disk, which is back.
    alone = coordinator_of(None)
    store = DurableStore(m, alone)
    alone.receive(99.0, "site-0", Leave("bye"))
    store.commit(alone.take())
    store.close()
    for behind in (a, old):
        with pytest.raises(UsageError, match="has acknowledged updates that"):
            again(behind, m)
    (m / "run.db").write_bytes(b"damaged")
    with pytest.raises(UsageError, match="move it away, and it is made anew"):
        again(a, m)


def test_a_commit_that_only_the_mirror_has_was_not_acknowledged(tmp_path: Path) -> None:
    """The server was killed between the two: it goes on from either."""
    a, m = tmp_path / "a", tmp_path / "m"
    run = served(a, m)
    run.steps(6)
    with broken(a), pytest.raises(RunError):
        run.step()
    run.store.abandon("failed")
    assert read_run(m).length > read_run(a).length
    again(a, m)
    assert read_run(m).length == read_run(a).length
    assert recovered(m) == recovered(a)


def test_a_mirror_that_was_begun_by_a_killed_server(tmp_path: Path) -> None:
    run = ServedRun(tmp_path / "a")
    run.steps(6)
    run.store.close()
    (tmp_path / "m").mkdir()
    whole = ("state-0.safetensors", "lost+found", "tokens.json", "updates.log")
    part = (
        "run.part",
        "run.part-journal",
        "run.part-wal",
        "version-1.part",
        ".tokens.json.0a1b2c3d",
    )
    for name in whole + part:
        (tmp_path / "m" / name).write_bytes(b"half")
    again(tmp_path / "a", tmp_path / "m")
    assert not {path.name for path in (tmp_path / "m").iterdir()} & set(part)
    assert recovered(tmp_path / "m") == recovered(tmp_path / "a")
