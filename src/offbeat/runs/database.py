"""Opening a database that may come from others: plain tables only, and no value beyond a limit.

A view, a trigger, a virtual table or a computed column runs whenever it is read or written, for as long as it
likes. Offbeat makes none of them, so a database that has one is not read.

A database in the mode WAL needs a file of shared memory beside it, even for a reader. Where a reader may make
none, and no process writes, the database is read without it.
"""

import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from offbeat.runs.lock import is_held
from offbeat.runs.own_files import check_own

MOST_BYTES = 2**28
"""Most bytes of one value: those of a checkpoint of a million clients are fewer."""
_TABLE = re.compile(
    r"CREATE TABLE\s+(\w+|\"\w+\"|'\w+')\s*\([\w\s,()]*\)(\s*WITHOUT ROWID)?\s*", re.IGNORECASE
)
# Offbeat's own tables have no other expression.
_ONE_ROW = "CHECK (id = 1)"
_EXPRESSIONS = re.compile(r"\b(AS|SELECT|CHECK|DEFAULT|GENERATED|REFERENCES)\b", re.IGNORECASE)

_UNWRITABLE = sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN
_MAGIC = bytes.fromhex("d9d505f920a163d7")  # of SQLite's rollback journals


def open_database(path: Path, *, write: bool = False, timeout: float = 5.0) -> sqlite3.Connection:
    """Open a database, whose threads may change, one at a time.

    Args:
        path: The file.
        write: Whether it is written. False means that it is there, and only read.
        timeout: Seconds to wait for another process's lock.

    Raises:
        OSError: It, or a file of SQLite's beside it, is no regular file.
        sqlite3.Error: It cannot be opened.
        ValueError: It has something else than plain tables.
    """
    check_files(path, write=write)
    if write:
        return _connect(str(path.absolute()), timeout)
    _finish_rollback(path)
    file = path.resolve()
    try:
        return _connect(f"{file.as_uri()}?mode=ro", timeout)
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _UNWRITABLE or is_held(file.parent):
            raise
        beside = [file.with_name(file.name + suffix) for suffix in ("-wal", "-journal")]
        left = [log for log in beside if log.is_file() and log.stat().st_size]
        if not left:
            return _connect(f"{file.as_uri()}?mode=ro&immutable=1", timeout)
        if beside[1] in left and _names_a_file(beside[1]):
            raise
    return _copied([file, *left])


def _copied(files: list[Path]) -> sqlite3.Connection:
    """Open a copy of a database, with the logs of a process that was killed, which nobody else finds.

    Raises `OSError` where a file cannot be read, or the temporary directory has no space left.
    """
    with TemporaryDirectory(prefix="offbeat-", ignore_cleanup_errors=True) as folder:
        for file in files:
            shutil.copyfile(file, Path(folder, file.name))
        database = _connect(str(Path(folder, files[0].name)))
        # In this mode, one file has all, which remains readable after it has lost its name.
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("PRAGMA query_only = ON")
        return database


def _connect(name: str, timeout: float = 5.0) -> sqlite3.Connection:
    """Connect to a file by its absolute path, or to what an URI names, and check its schema.

    SQLite may take a relative path that begins with "file:" for an URI.
    """
    uri = name.startswith("file:")
    database = sqlite3.connect(name, uri=uri, timeout=timeout, check_same_thread=False)
    try:
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        database.execute("PRAGMA trusted_schema = OFF")
        check_schema(database)
    except BaseException:
        database.close()
        raise
    return database


def check_files(path: Path, *, write: bool) -> None:
    """Check a database and SQLite's files beside it before SQLite opens them, which may be missing.

    SQLite waits for a pipe, and writes to what a link leads to, even where it only reads the database.

    Args:
        path: The database.
        write: Whether it is written. A database that is only read may be a link.

    Raises:
        OSError: One of them is no regular file.
    """
    if write:
        check_own(path)
    database = path.resolve()
    for suffix in ("", "-wal", "-shm", "-journal"):
        check_own(database.with_name(database.name + suffix))


def _finish_rollback(path: Path) -> None:
    """Undo the transaction of a process that was killed in the middle of it.

    SQLite undoes it for whoever may write. A database that is written in the mode WAL has no such journal. A
    journal that may come from others is left alone if it names a further file, which SQLite would delete.
    """
    journal = path.with_name(f"{path.name}-journal")
    try:
        if _names_a_file(journal):
            return
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as database:
            database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except (OSError, sqlite3.Error):
        # Whoever reads it is told.
        return


def _names_a_file(journal: Path) -> bool:
    """Whether a rollback journal ends with the name of a journal of several databases."""
    with journal.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_MAGIC)))
        return size > len(_MAGIC) and file.read() == _MAGIC


def check_schema(database: sqlite3.Connection) -> None:
    """Check that a database has plain tables only, and the indexes of their keys.

    Raises:
        ValueError: It has something else.
    """
    for kind, name, sql in database.execute("SELECT type, name, sql FROM sqlite_master"):
        if kind == "index" and sql is None:
            continue
        if kind != "table" or not isinstance(sql, str) or not _is_plain(sql):
            raise ValueError(f"it has the {kind} {name!r:.60}, which is no plain table of Offbeat's")


def _is_plain(sql: str) -> bool:
    """Whether a statement makes a table of columns and keys, without an expression."""
    bare = sql.replace(_ONE_ROW, "", 1)
    return _TABLE.fullmatch(bare) is not None and _EXPRESSIONS.search(bare) is None
