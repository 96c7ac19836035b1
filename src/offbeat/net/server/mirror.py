"""Mirror of a state directory: a second one, on another disk, that has all that was acknowledged.

It gets each commit in a thread of its own, while the first directory gets it too, and the server answers when
both have it. A mirror that fails is left behind, which the operator is told of; it is made anew from each
checkpoint on, until that works, as from the checkpoint that a server begins with.
"""

import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing, suppress
from filecmp import cmp
from pathlib import Path
from shutil import copyfileobj
from typing import TypeVar

from offbeat.core.errors import OffbeatError, RunError, UsageError, reason_of
from offbeat.core.release import Release
from offbeat.net.auth.tokens import is_whole
from offbeat.net.monitor.snapshot import MirrorView
from offbeat.net.server.state_files import MIRROR_OF, StateFiles
from offbeat.net.server.stored_updates import UPDATES, has_kept_updates
from offbeat.net.threads import DaemonThread
from offbeat.runs.damage import reading
from offbeat.runs.database import check_files, open_database
from offbeat.runs.durable_files import PRIVATE_PART, make_directory, sync_directory, write_private
from offbeat.runs.lock import lock
from offbeat.runs.own_files import open_own, replacing
from offbeat.runs.record import RunRecord, holds_run, read_run
from offbeat.runs.schema import BEST, DATABASE, LOCK
from offbeat.runs.store import RunStore
from offbeat.runs.verify import named_files
from offbeat.units import duration_text

log = logging.getLogger(__name__)
MIRROR = "mirror"
"""The entry of the table `meta` that says where the mirror is, and what is wrong with it."""
SECONDS = 60.0
"""Seconds for which a commit waits for the mirror's disk; then the mirror has failed."""
SLOWEST = 10e6
"""Bytes a second that a disk for a mirror writes at least."""
_OTHERS = ("tokens.json", "dashboard-token", "mlflow-run-id", "wandb-run-id", "tls")
"""Files, and a folder of them, that no commit changes."""
_TOKENS = ("tokens.json", "dashboard-token")
_PART = "run.part"
"""The database of a new mirror, until it is whole."""
_OF_A_DISK = "lost+found"
Act = Callable[[StateFiles], None]
T = TypeVar("T")


def nothing() -> None:
    """Wait for nothing."""


class NoMirror:
    """There is no mirror."""

    view: MirrorView | None = None

    def check(self, directory: Path) -> None:
        """Every directory can be without one."""

    def renew(self, files: StateFiles, release: Release) -> None:
        """Nothing is begun."""

    def write(self, act: Act) -> Callable[[], None]:
        """Nothing is written."""
        return nothing

    def end(self, act: Act) -> None:
        """Nothing is open."""


class DirectoryMirror:
    """A mirror in a directory.

    Args:
        directory: The directory.
        required: Whether the server fails with its mirror.
        seconds: Seconds for which a commit waits for it.
    """

    def __init__(self, directory: Path, *, required: bool = False, seconds: float = SECONDS) -> None:
        self.directory, self._required, self._seconds = directory, required, seconds
        # The mirror that has all so far. None means that it is behind.
        self._files: StateFiles | None = None
        self._problem: str | None = "it is not there yet"
        self._thread = DaemonThread("offbeat-mirror")
        self._begun: Future[StateFiles] | None = None
        self._told = False
        self._seen: dict[str, tuple[int, ...]] = {}

    @property
    def view(self) -> MirrorView:
        """Where the mirror is, and whether it has all."""
        return MirrorView(str(self.directory), self._problem)

    def check(self, directory: Path) -> None:
        """Check that a directory can have this mirror. Raises `UsageError`."""
        check_mirror(directory, self.directory)

    def renew(self, files: StateFiles, release: Release) -> None:
        """Begin the mirror from a checkpoint that was just written, if it is behind.

        The server waits meanwhile: nothing may be deleted that is still to be copied.
        """
        if self._files is not None or (self._begun is not None and not self._begun.done()):
            return
        sizes = (path.stat().st_size for path in files.directory.iterdir() if path.is_file())
        seconds = self._seconds + sum(sizes) / SLOWEST
        self._begun = begun = self._thread.submit(self._begin, files, release)
        self._files = self._result(begun, seconds)
        if self._files is not None:
            self._problem, self._told = None, False
            log.info("the mirror has all that the run has", extra={"mirror": str(self.directory)})
        elif not begun.done():
            # What it makes in the end is of a moment that is past.
            begun.add_done_callback(_close)

    def _begin(self, files: StateFiles, release: Release) -> StateFiles:
        check_mirror(files.directory, self.directory)
        copy_checkpoint(files.directory, self.directory)
        self._seen.clear()
        self._copy_others(files.directory)
        store = RunStore.reopen(self.directory)
        try:
            store.flush({}, [("DELETE FROM meta WHERE key = ?", [(MIRROR,)])], {"meta": [MIRROR]})
            if files.store.best is not None:
                store.best = files.store.best.beside(self.directory)
            opened = StateFiles(store, release, mirrors=files.directory, keep=files.keep)
        except BaseException:
            store.close()
            raise
        opened.secrets.forget()
        return opened

    def write(self, act: Act) -> Callable[[], None]:
        """Begin to write; returns what waits until that is done, or has failed."""
        if (files := self._files) is None:
            return nothing

        def written() -> None:
            act(files)
            self._copy_others(files.mirrors)

        future = self._thread.submit(written)

        def wait() -> None:
            self._result(future, self._seconds)

        return wait

    def end(self, act: Act) -> None:
        """Write for the last time, and close. A disk that does not answer delays it by `seconds` at most."""
        whole, self._told = self._files is not None, True
        with suppress(RunError):
            self.write(act)()
        self._thread.end()
        if whole and self._files is None:
            lacks = "the server ends without its mirror %s, which lacks what was written last (%s)"
            log.error(lacks, self.directory, self._problem)
        self._files = None

    def _result(self, future: "Future[T]", seconds: float) -> T | None:
        """What the thread gives; None where it fails. Raises `RunError` if the mirror is required."""
        try:
            return future.result(seconds)
        except FutureTimeoutError:
            self._fail(f"its disk has not answered for {duration_text(round(seconds))}")
        except (OffbeatError, OSError, sqlite3.Error) as error:
            self._fail(" ".join(reason_of(error).split()))
        return None

    def _fail(self, problem: str) -> None:
        if self._files is not None:
            # After what the thread is doing.
            self._thread.submit(self._files.close)
        self._files, self._problem = None, problem
        what = f"the mirror {self.directory} has failed ({problem})"
        if self._required:
            raise RunError(
                f"{what}, and server.mirror_required is true: no acknowledged update is lost. Repair the "
                "disk, or choose another --mirror, and start the server again"
            )
        if not self._told:
            log.error("%s: the run goes on without it, and it is tried again at each checkpoint", what)
        self._told = True

    def _copy_others(self, source: Path | None) -> None:
        """Copy what no commit changes, such as tokens, where it has changed since."""
        assert source is not None
        file_states: dict[str, tuple[int, ...]] = {}
        for name in _OTHERS:
            path = source / name
            for file in sorted(path.glob("*")) if path.is_dir() else [path]:
                if file.is_file() and not file.name.startswith("."):
                    status = file.stat()
                    key = file.relative_to(source).as_posix()
                    file_states[key] = (status.st_mtime_ns, status.st_size, status.st_ino)
        for name, file_state in file_states.items():
            if self._seen.get(name) != file_state:
                target = self.directory / name
                target.parent.mkdir(mode=0o700, exist_ok=True)
                data = (source / name).read_bytes()
                if name in _TOKENS and not is_whole(data):
                    # The last whole file stays, as in the server's memory.
                    continue
                write_private(target, data)
        self._seen = file_states


Mirror = DirectoryMirror | NoMirror
"""What a store does beside its own directory."""


def _close(begun: "Future[StateFiles]") -> None:
    if begun.exception() is None:
        begun.result().close()


def mirror_of(directory: Path | None, *, required: bool) -> Mirror:
    """The mirror in a directory; none where there is no directory. Raises `UsageError`."""
    if directory is None:
        if required:
            raise UsageError("mirror_required = true needs a mirror: give --mirror DIR, in Python mirror=")
        return NoMirror()
    return DirectoryMirror(directory, required=required)


def check_mirror(directory: Path, mirror: Path) -> None:
    """Check that a directory can have a mirror, in which nothing would be lost.

    Args:
        directory: The state directory, which may be missing.
        mirror: The mirror, which may be missing or empty, or has been one of the same run.

    Raises:
        UsageError: It cannot.
    """
    here, there = directory.resolve(), mirror.resolve()
    if here == there or here in there.parents or there in here.parents:
        raise UsageError(f"{mirror} is not allowed as the mirror of {directory}: one is in the other")
    if mirror.exists() and not mirror.is_dir():
        raise UsageError(f"{mirror} is not allowed as a mirror: it is no directory")
    if not (mirror / DATABASE).exists():
        _check_empty(mirror)
        return
    held = _read(mirror)
    if not holds_run(directory):
        raise UsageError(
            f"{directory} has no run, and its mirror {mirror} has one: serve that, with --state {mirror}, "
            f"and with another --mirror; or move it away to begin a new run"
        )
    own = read_run(directory)
    if own.meta.get("run") != held.meta.get("run"):
        raise UsageError(f"{mirror} has another run ({held.label}): choose another mirror, or move it away")
    _check_older(own, held)


def _check_empty(mirror: Path) -> None:
    """Check that a mirror without a run has nothing but what a server left that was killed in the middle."""
    found = [path.name for path in mirror.iterdir()] if mirror.is_dir() else []
    other = [name for name in found if not (_is_of_a_mirror(name) or _is_unfinished(name))]
    if other:
        raise UsageError(
            f"{mirror} is not allowed as a mirror: it has {other[0]}, and no run. Give an empty directory"
        )


def _is_of_a_mirror(name: str) -> bool:
    """Whether a name is that of a file which is copied before the database, or none of Offbeat's."""
    mine = (*_OTHERS, LOCK, BEST, UPDATES, _OF_A_DISK)
    return name in mine or name.endswith(".safetensors") or name.startswith(".")


def _is_unfinished(name: str) -> bool:
    """Whether a name is that of a file which was being written, or of SQLite's own beside one."""
    return PRIVATE_PART.fullmatch(name) is not None or name.endswith(".part") or name.startswith(f"{_PART}-")


def _clear(mirror: Path) -> None:
    """Delete what a server has left that was killed in the middle."""
    for place in (mirror, mirror / "tls"):
        for path in place.glob("*"):
            if _is_unfinished(path.name) and (path.is_file() or path.is_symlink()):
                path.unlink()


def _read(mirror: Path) -> RunRecord:
    try:
        return read_run(mirror)
    except OffbeatError as error:
        raise UsageError(
            f"{mirror} cannot be a mirror ({error}): move it away, and it is made anew"
        ) from None


def _check_older(run: RunRecord, mirror: RunRecord) -> None:
    """Check that the mirror has no acknowledged row that the run has not."""
    mirrored = mirror.meta.get(MIRROR_OF)
    rows = int(mirrored["rows"]) if isinstance(mirrored, dict) and "rows" in mirrored else mirror.length
    same = run.length >= rows and _row(run, rows - 1) == _row(mirror, rows - 1)
    if not same:
        raise UsageError(
            f"the mirror {mirror.path} has acknowledged updates that {run.path} has not (rows {rows} and "
            f"{run.length}): it was served by itself, or the other was restored from an older copy. Serve "
            f"it, with --state {mirror.path}; or move it away, and it is made anew"
        )


def _row(record: RunRecord, seq: int) -> object:
    return next((row for row in record.rows(after=seq - 1, limit=1)), None)


def copy_checkpoint(directory: Path, mirror: Path) -> None:
    """Make a mirror what a directory is at its checkpoint, after which nothing has been written.

    The files come first, then the database in one transaction of its own: the mirror has what it had, or all.

    Args:
        directory: The directory, whose database can be read.
        mirror: The mirror, which no process writes.

    Raises:
        OffbeatError: The mirror cannot be written, or another process writes it.
        OSError: As before.
    """
    make_directory(mirror)
    held = lock(mirror)
    try:
        _clear(mirror)
        record = read_run(directory)
        checkpoint = record.checkpoint()
        names = [] if checkpoint is None else [*named_files(checkpoint)]
        names += [BEST] if (directory / BEST).exists() else []
        names += [UPDATES] if has_kept_updates(record) else []
        for name in names:
            if not ((mirror / name).is_file() and cmp(directory / name, mirror / name, shallow=False)):
                _copy_file(directory / name, mirror / name)
        path = mirror / DATABASE
        target = path if path.exists() else mirror / _PART
        check_files(target, write=True)
        with reading(directory / DATABASE), closing(open_database(directory / DATABASE)) as source:
            os.close(open_own(target))
            with closing(sqlite3.connect(target.absolute())) as copy:
                source.backup(copy)
                if target != path:  # then it is one file, which can be renamed
                    copy.execute("PRAGMA journal_mode = DELETE")
        target.replace(path)
        sync_directory(mirror)
    finally:
        held.release()


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file of tensors as a whole, durably."""
    with (
        source.open("rb") as read,
        replacing(target, part=target.with_suffix(".part")) as file,
        os.fdopen(file, "wb", closefd=False) as write,
    ):
        copyfileobj(read, write)
