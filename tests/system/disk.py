"""A simulated disk below SQLite and plain files: only what was synced is sure to survive a power failure.

Plain files are real files in a directory, in memory where there is one; `watching` stands between the code
and the calls of the operating system that change them. What SQLite writes goes through a VFS of apsw and
stays in memory. A disk knows what is durable: the content of a file as of its last fsync, the names of a
directory as of the directory's. A power failure keeps that, and of the rest what is drawn: the first of the
changes of names since, and any of the sectors of 512 bytes of each file.

Faults are drawn before each change: an error, a full disk, a short write, a delay, a power failure.
"""

# What stands here in place of the functions of `os` is what pathlib calls.
# ruff: noqa: PTH108, PTH110, PTH116

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import apsw
from filelock import Timeout

from tests.system.loop import Process, current_process, take_longer

SECTOR = 512
SHARES = (0.0, 0.5, 0.9, 1.0)
"""Shares of the writes since the last sync that survive a power failure."""
VFS = "simulated"
_BASE = "unix-excl"  # keeps the index of the write-ahead log in memory


@dataclass
class File:
    """The content of a file: what is durable, and for SQLite's what is written since."""

    durable: bytearray = field(default_factory=bytearray)
    content: bytearray | None = None  # of a file of SQLite's
    written: list[tuple[int, bytes]] = field(default_factory=list)  # since the last sync
    cut: bool = False  # truncated since
    locks: dict[int, int] = field(default_factory=dict)  # SQLite's level of each connection

    def sync(self, content: bytes | None = None) -> None:
        """Make the content durable, which is given for a plain file."""
        if content is not None or self.cut:
            self.durable = bytearray(self.content if content is None else content)
        for at, piece in self.written:
            _put(self.durable, at, piece)
        self.written.clear()
        self.cut = False


class Disk:
    """The disk of one machine.

    Args:
        root: An empty directory, whose name itself is durable.
        rng: Draws the faults, and what survives a power failure.
        trace: Takes a line for each change.

    Attributes:
        error: Probability in [0, 1] of an error of the device, for each change.
        full: Whether there is no space.
        slow: Most seconds that a change takes.
        fails_after: The power fails after so many changes. None means that it does not.
        power_failed: Called when it does.
        changes: Number of changes so far.
        errors: Number of injected errors so far.
    """

    def __init__(self, root: Path, rng: Random, trace: Callable[[str], None]) -> None:
        self.root, self._rng, self._trace = root, rng, trace
        self.error, self.full, self.slow = 0.0, False, 0.0
        self.fails_after: int | None = None
        self.power_failed: Callable[[], None] = lambda: None
        self.changes = self.errors = 0
        self._files: dict[int, File] = {}  # by inode
        self._names: dict[
            Path, dict[str, File | None]
        ] = {}  # durable names of each directory; None: one of those
        self._renamed: dict[Path, list[tuple[str, File | None, bool]]] = {}  # changes since
        self._directories: dict[int, Path] = {}
        self.locks: dict[str, Process | None] = {}
        self._enter(root)

    def _enter(self, directory: Path) -> None:
        self._names[directory], self._renamed[directory] = {}, []
        self._directories[directory.stat().st_ino] = directory

    # ---- faults ----

    def change(self, what: str, path: str, process: Process | None = None) -> None:
        """Draw the faults of a change that is about to happen. Raises `OSError` if it does not happen.

        Args:
            what: Kind of the change.
            path: What is changed.
            process: The process that changes it. None means the one that runs now.
        """
        process = process or current_process()
        if process is None:
            return
        if not process.alive:
            raise OSError(errno.EIO, "the power has failed", path)
        self.changes += 1
        self._trace(f"{what} {path}")
        if self.fails_after is not None:
            self.fails_after -= 1
            if self.fails_after < 0:
                self.fails_after = None
                self._trace(f"power failure of {process.name}")
                self.power_failed()
                raise OSError(errno.EIO, "the power has failed", path)
        if self.slow:
            take_longer(self._rng.random() * self.slow)
        if self.full and what in ("create", "write"):
            self.errors += 1
            raise OSError(errno.ENOSPC, "no space left on device", path)
        if self.error and self._rng.random() < self.error:
            self.errors += 1
            self._trace(f"error {what} {path}")
            raise OSError(errno.EIO, "input/output error", path)

    def shortened(self, size: int) -> int:
        """How many bytes a write of this size takes: fewer where a fault is drawn."""
        return self._rng.randrange(1, size) if self.error and size > 1 and self._rng.random() < 0.5 else size

    # ---- names and files ----

    def file(self, path: Path) -> File:
        """The file of a path, which is new if it was not seen before."""
        number = path.stat().st_ino
        if number not in self._files:
            self._files[number] = File()
            self._renamed[path.parent].append((path.name, self._files[number], True))
        return self._files[number]

    def of_descriptor(self, number: int) -> File | Path | None:
        """The file, or the directory, of an inode; None where it is not of this disk."""
        return self._files.get(number) or self._directories.get(number)

    def made(self, directory: Path) -> None:
        """A directory was made."""
        self._enter(directory)
        self._renamed[directory.parent].append((directory.name, None, True))

    def moved(self, source: Path, target: Path, old: int | None) -> None:
        """A file was renamed; `old` is the inode that had the name before."""
        if old is not None:
            self._files.pop(old, None)
        changes = self._renamed[source.parent]
        changes.append((target.name, self.file(target), True))
        changes.append((source.name, None, False))

    def removed(self, path: Path, number: int) -> None:
        """A file was unlinked."""
        self._files.pop(number, None)
        self._renamed[path.parent].append((path.name, None, False))

    def sync_directory(self, directory: Path) -> None:
        """Make the names in a directory durable."""
        _apply(self._names[directory], self._renamed[directory])
        self._renamed[directory].clear()

    # ---- power failure ----

    def restart(self, *, power_failed: bool) -> None:
        """What is there after the process of the machine has died.

        Args:
            power_failed: What is durable is there, and some of the rest; else all is there.
        """
        survived = {self.root: self._survivors(self.root, power_failed)}
        for directory in [name for name in self._names if name != self.root]:
            if directory.name in survived[self.root]:
                survived[directory] = self._survivors(directory, power_failed)
        self._files.clear()
        self._names.clear()
        self._renamed.clear()
        self._directories.clear()
        self.locks.clear()
        shutil.rmtree(self.root)
        for directory, files in survived.items():
            directory.mkdir(mode=0o700)
            self._enter(directory)
            for name, (data, database) in files.items():
                if data is not None:
                    self._write(directory / name, data, database)
            self._names[directory].update({n: None for n, (data, _) in files.items() if data is None})

    def _write(self, path: Path, data: bytes, database: bool) -> None:
        path.write_bytes(data[:1] if database else data)
        self._files[path.stat().st_ino] = file = File(bytearray(data), bytearray(data) if database else None)
        self._names[path.parent][path.name] = file

    def _survivors(self, directory: Path, power_failed: bool) -> dict[str, tuple[bytes | None, bool]]:
        """The names that survive in a directory, with content; None: a directory."""
        numbers = {id(file): number for number, file in self._files.items()}
        places = {p.stat().st_ino: p for p in directory.iterdir()}
        names, changes = dict(self._names[directory]), self._renamed[directory]
        _apply(names, changes[: self._rng.randint(0, len(changes)) if power_failed else len(changes)])
        found: dict[str, tuple[bytes | None, bool]] = {}
        for name, file in names.items():
            if file is None:
                found[name] = None, False
            elif file.content is not None:
                found[name] = self._torn_database(file) if power_failed else bytes(file.content), True
            else:
                place = places.get(numbers.get(id(file), -1))
                latest = place.read_bytes() if place else bytes(file.durable)
                found[name] = self._torn(bytes(file.durable), latest) if power_failed else latest, False
        return found

    def _torn(self, durable: bytes, latest: bytes) -> bytes:
        """Any sectors of the latest content, the others as they were."""
        if durable == latest:
            return durable
        size = self._rng.choice((len(durable), len(latest), max(len(durable), len(latest))))
        pieces, keep = [], self._rng.choice(SHARES)
        for at in range(0, size, SECTOR):
            chosen = (latest if self._rng.random() < keep else durable)[at : at + SECTOR]
            pieces.append(chosen.ljust(min(SECTOR, size - at), b"\0"))
        return b"".join(pieces)[:size]

    def _torn_database(self, file: File) -> bytes:
        """Any of the writes since the last sync, each whole, up to a sector, or not at all."""
        assert file.content is not None
        if file.cut and self._rng.random() < 0.5:
            return bytes(file.content)
        data = bytearray(file.durable)
        keep = self._rng.choice(SHARES)
        for at, piece in file.written:
            if self._rng.random() < keep:
                torn = self._rng.random() < 0.3
                _put(
                    data, at, piece[: SECTOR * self._rng.randint(0, len(piece) // SECTOR)] if torn else piece
                )
        return bytes(data)


def _apply(names: dict[str, File | None], changes: list[tuple[str, File | None, bool]]) -> None:
    for name, file, there in changes:
        if there:
            names[name] = file
        else:
            names.pop(name, None)


def _put(data: bytearray, at: int, piece: bytes) -> None:
    if len(data) < at:
        data.extend(bytes(at - len(data)))
    data[at : at + len(piece)] = piece


# ---- between the code and the operating system ----


@contextmanager
def watching(disks: list[Disk]) -> Iterator[None]:
    """Stand between the code and the disks: whatever it opens below their roots is theirs."""

    def disk_of(path: Any) -> Disk | None:
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        return next(
            (d for d in disks if isinstance(text, str) and text.startswith(f"{d.root}{os.sep}")), None
        )

    def behind(descriptor: int) -> tuple[Disk, File | Path] | None:
        number = os.fstat(descriptor).st_ino
        found = ((disk, disk.of_descriptor(number)) for disk in disks)
        return next(((disk, file) for disk, file in found if file is not None), None)

    def open_(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        disk = disk_of(path)
        if disk is None or not flags & os.O_CREAT or os.path.exists(path):
            return int(real_open(path, flags, *args, **kwargs))
        disk.change("create", _short(disk, path))
        descriptor = int(real_open(path, flags, *args, **kwargs))
        disk.file(Path(path))
        return descriptor

    def write(descriptor: int, data: Any) -> int:
        found = behind(descriptor)
        if found is None:
            return int(real_write(descriptor, data))
        found[0].change("write", f"{len(data)}")
        return int(real_write(descriptor, memoryview(data)[: found[0].shortened(len(data))]))

    def sync(descriptor: int) -> None:
        found = behind(descriptor)
        if found is None:
            real_sync(descriptor)
            return
        disk, file = found
        disk.change("sync", file.name if isinstance(file, Path) else "file")
        if isinstance(file, Path):
            disk.sync_directory(file)
        else:
            file.sync(os.pread(descriptor, os.fstat(descriptor).st_size, 0))

    def replace(source: Any, target: Any) -> None:
        disk = disk_of(source)
        if disk is None:
            real_replace(source, target)
            return
        disk.change("rename", _short(disk, target))
        old = os.stat(target).st_ino if os.path.exists(target) else None
        real_replace(source, target)
        disk.moved(Path(source), Path(target), old)

    def unlink(path: Any, **kwargs: Any) -> None:
        disk = disk_of(path)
        if disk is None or not os.path.exists(path):
            real_unlink(path, **kwargs)
            return
        disk.change("unlink", _short(disk, path))
        number = os.stat(path).st_ino
        real_unlink(path, **kwargs)
        disk.removed(Path(path), number)

    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        disk = disk_of(path)
        if disk is not None and not os.path.exists(path):
            disk.change("create", _short(disk, path))
        real_mkdir(path, *args, **kwargs)
        if disk is not None:
            disk.made(Path(path))

    def connect(path: Any, **kwargs: Any) -> Any:
        text = os.fspath(path).removeprefix("file://").removesuffix("?mode=ro")
        if disk_of(text) is None:
            return real_connect(path, **kwargs)
        return Database(text, reads_only=kwargs.get("uri", False))

    real_open, real_write, real_sync, real_replace = os.open, os.write, os.fsync, os.replace
    real_unlink, real_mkdir, real_connect, real_list = os.unlink, os.mkdir, sqlite3.connect, os.listdir
    changed: list[tuple[Any, str, Any]] = [
        (os, "open", open_), (os, "write", write), (os, "fsync", sync), (os, "fdatasync", sync),
        (os, "replace", replace), (os, "unlink", unlink), (os, "mkdir", mkdir), (sqlite3, "connect", connect),
        (os, "listdir", lambda path=".": sorted(real_list(path))),
    ]  # fmt: skip
    _Vfs.disk_of = staticmethod(disk_of)
    with ExitStack() as stack:
        for where, name, function in changed:
            stack.enter_context(patch.object(where, name, function))
        stack.enter_context(patch("offbeat.net.server.state_files._sync", sync))
        stack.enter_context(
            patch("offbeat.runs.lock.FileLock", lambda path, **_: Lock(disk_of(path), str(path)))
        )
        yield


def _short(disk: Disk, path: Any) -> str:
    return os.fspath(path)[len(str(disk.root)) + 1 :]


class Lock:
    """A `filelock.FileLock`, which the death of its process frees."""

    def __init__(self, disk: Disk | None, path: str) -> None:
        assert disk is not None
        self._disk, self._path = disk, path

    def acquire(self) -> None:
        """Take the lock; raises `Timeout` where another one has it."""
        holder, me = self._disk.locks.get(self._path), current_process()
        if holder is not None and holder.alive:
            raise Timeout(self._path)
        self._disk.locks[self._path] = me

    def release(self) -> None:
        """Free the lock."""
        if self._disk.locks.get(self._path) is current_process():
            self._disk.locks.pop(self._path, None)


class _Vfs(apsw.VFS):
    """Files of SQLite: real names, contents in memory."""

    disk_of: Callable[[Any], Disk | None]

    def __init__(self) -> None:
        super().__init__(VFS, _BASE)

    def xOpen(self, name: Any, flags: list[int]) -> "_VfsFile":
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        return _VfsFile(name, path, flags)

    def xDelete(self, name: str, sync: bool) -> None:
        with _as_sqlite():
            if os.path.exists(name):
                os.unlink(name)
            if sync and (disk := _Vfs.disk_of(name)) is not None:
                disk.sync_directory(Path(name).parent)


class _VfsFile(apsw.VFSFile):
    def __init__(self, name: Any, path: str, flags: list[int]) -> None:
        disk = _Vfs.disk_of(path)
        assert disk is not None, path
        self._disk, self._path, self._process = disk, path, current_process()
        with _as_sqlite():
            if flags[0] & apsw.SQLITE_OPEN_CREATE and not os.path.exists(path):
                disk.change("create", _short(disk, path))
        super().__init__(_BASE, name, flags)
        self._file = disk.file(Path(path))
        if self._file.content is None:
            self._file.content = bytearray()
        self._reads_only = bool(flags[0] & apsw.SQLITE_OPEN_READONLY)
        self._new = bool(flags[0] & (apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL))

    def xLock(self, level: int) -> None:
        others = max((held for owner, held in self._file.locks.items() if owner != id(self)), default=0)
        free = {
            apsw.SQLITE_LOCK_SHARED: apsw.SQLITE_LOCK_PENDING,
            apsw.SQLITE_LOCK_RESERVED: apsw.SQLITE_LOCK_RESERVED,
        }
        if others >= free.get(level, apsw.SQLITE_LOCK_SHARED):
            raise apsw.BusyError("another connection has a lock")
        if self._reads_only and level > apsw.SQLITE_LOCK_SHARED:
            raise apsw.BusyError("the file is open for reading")
        self._file.locks[id(self)] = level

    def xUnlock(self, level: int) -> None:
        self._file.locks[id(self)] = level

    def xCheckReservedLock(self) -> bool:
        return any(held >= apsw.SQLITE_LOCK_RESERVED for held in self._file.locks.values())

    def xClose(self) -> None:
        self._file.locks.pop(id(self), None)
        super().xClose()

    def xRead(self, amount: int, offset: int) -> bytes:
        assert self._file.content is not None
        return bytes(self._file.content[offset : offset + amount])

    def xWrite(self, data: Any, offset: int) -> None:
        file, piece = self._file, bytes(data)
        assert file.content is not None
        with _as_sqlite():
            self._disk.change(
                "write", f"{_short(self._disk, self._path)} {offset} {len(piece)}", self._process
            )
        if not file.content:
            with suppress(OSError):
                os.truncate(self._path, 1)  # its name is seen to have a file that is not empty
        file.written.append((offset, piece))
        _put(file.content, offset, piece)

    def xTruncate(self, size: int) -> None:
        assert self._file.content is not None
        with _as_sqlite():
            self._disk.change("truncate", _short(self._disk, self._path), self._process)
        del self._file.content[size:]
        self._file.cut = True

    def xFileSize(self) -> int:
        assert self._file.content is not None
        return len(self._file.content)

    def xSync(self, flags: int) -> None:
        assert self._file.content is not None
        with _as_sqlite():
            self._disk.change("sync", _short(self._disk, self._path), self._process)
        self._file.sync()
        if self._new:  # as SQLite's own VFS does after it has made a journal
            self._disk.sync_directory(Path(self._path).parent)
            self._new = False


@contextmanager
def _as_sqlite() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = apsw.FullError if error.errno == errno.ENOSPC else apsw.IOError
        raise kind(str(error)) from None


_VFS = _Vfs()
_CODES = {apsw.IOError: apsw.SQLITE_IOERR, apsw.FullError: apsw.SQLITE_FULL, apsw.BusyError: apsw.SQLITE_BUSY}


class Database:
    """A `sqlite3.Connection` on apsw, as far as the package uses one."""

    def __init__(self, path: str, *, reads_only: bool) -> None:
        writes = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        with _as_dbapi():
            self._connection = apsw.Connection(
                path, vfs=VFS, flags=apsw.SQLITE_OPEN_READONLY if reads_only else writes
            )

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._connection.in_transaction

    def execute(self, query: str, values: Any = ()) -> "_Rows":
        """Execute one statement, all of it; begins a transaction before it changes anything."""
        with _as_dbapi():
            self._begin(query)
            rows = self._connection.execute(query, values).fetchall()
            return _Rows(rows, self._connection.last_insert_rowid())

    def executemany(self, query: str, values: Any) -> None:
        """Execute a statement for each row of values."""
        with _as_dbapi():
            self._begin(query)
            self._connection.executemany(query, values).fetchall()

    def setlimit(self, category: int, limit: int) -> None:
        """Set a limit of the connection."""
        self._connection.limit(category, limit)

    def executescript(self, script: str) -> None:
        """Execute statements, outside of a transaction."""
        self.commit()
        with _as_dbapi():
            self._connection.execute(script).fetchall()

    def commit(self) -> None:
        """End the transaction, if there is one."""
        if self._connection.in_transaction:
            with _as_dbapi():
                self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the connection; that its checkpoint may have failed is no error."""
        with suppress(apsw.Error):
            self._connection.close()

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            try:
                self.commit()
            except sqlite3.Error:
                self._roll_back()
                raise
        else:
            self._roll_back()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with _as_dbapi():
                self._connection.execute("ROLLBACK")

    def _begin(self, query: str) -> None:
        changes = query.lstrip()[:6].upper() in ("INSERT", "UPDATE", "DELETE", "REPLAC")
        if changes and not self._connection.in_transaction:
            self._connection.execute("BEGIN")


class _Rows:
    """Rows that were read."""

    def __init__(self, rows: list[Any], lastrowid: int) -> None:
        self._rows, self.lastrowid = iter(rows), lastrowid

    def __iter__(self) -> Iterator[Any]:
        return self._rows

    def fetchone(self) -> Any:
        """The next row; None after the last."""
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        """The rows that are left."""
        return list(self._rows)


@contextmanager
def _as_dbapi() -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raised = sqlite3.OperationalError(str(error))
        raised.sqlite_errorcode = _CODES.get(type(error), getattr(error, "extendedresult", 0))
        raise raised from None
