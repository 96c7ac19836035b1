"""A copy of a run as it was at one moment, while a process may write it.

The moment is that of a read transaction of `run.db`. The files that its checkpoint names are opened at once:
the writer never changes one, it only deletes them, and an open file can be read until it is closed. What the
writer does change, `updates.log` and `secrets.db`, it changes after the next checkpoint only; if there is
one before these are copied, all begins again. The writer is never asked, and never waits.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from os import walk
from pathlib import Path
from shutil import disk_usage, rmtree
from typing import Any, BinaryIO

from msgspec import convert
from safetensors import safe_open

from offbeat.backup.copying import PIECE, copy_opened, describe, make_new, open_regular, sync_folders
from offbeat.backup.manifest import (
    NEVER_COPIED,
    SECRETS,
    UPDATES,
    CopiedFile,
    Manifest,
    is_inside,
    moment,
)
from offbeat.core.errors import RunError, UsageError
from offbeat.net.audit import Head
from offbeat.net.server.stored_updates import KEPT, NEWEST
from offbeat.runs.checksums import has_table, read_table, seal
from offbeat.runs.damage import damage, reading
from offbeat.runs.database import open_database
from offbeat.runs.record import Checkpoint, RunRecord, checkpoint_row, read_run
from offbeat.runs.schema import BEST, DATABASE, MODEL, NEW_BEST
from offbeat.runs.verify import named_files

ATTEMPTS = 8
MOST_OPEN = 500
"""Files that are held open; those of a run with more of them are opened one after the other."""
_OF_CHECKPOINTS = re.compile(r"(state|version|update|client|cached)-\d+(-b?float16)?\.safetensors", re.ASCII)
_AT_THE_END = "clients"  # the folder of the clients' own tensors
_ITS_OWN = frozenset({DATABASE, SECRETS, UPDATES, BEST, NEW_BEST}) | NEVER_COPIED


class ChangedError(Exception):
    """The directory has changed while it was copied."""


@dataclass(frozen=True)
class RunCopy:
    """A copy that was made.

    Attributes:
        manifest: What it is.
        record: The run as it is in the copy.
        left_out: Links and other files that are no regular ones, by name.
        withdrawn: Number of seeds of noise that were left out, as the copy does not have their releases.
    """

    manifest: Manifest
    record: RunRecord
    left_out: tuple[str, ...]
    withdrawn: int


def copy_run(directory: Path, target: Path) -> RunCopy:
    """Copy a run.

    Args:
        directory: Its directory.
        target: A directory, which is empty.

    Raises:
        UsageError: The directory is no run that can be read.
        DamageError: The run is damaged.
        RunError: The target has no room, or the run has changed during every attempt.
        OSError: The target cannot be written.
    """
    problem: BaseException | None = None
    for attempt in range(ATTEMPTS):
        before = _current_checkpoint(directory)
        try:
            return _copy_once(directory, target, last=attempt == ATTEMPTS - 1)
        except ChangedError as error:
            # A file that a new checkpoint has replaced is missing without any damage.
            problem = error.__cause__ if _current_checkpoint(directory) == before else None
            for path in list(target.iterdir()):
                rmtree(path) if path.is_dir() else path.unlink()
    if isinstance(problem, RunError):
        raise problem
    raise RunError(
        f"{directory} had a new checkpoint during each of {ATTEMPTS} attempts to copy it: choose a target on "
        "a faster disk, and copy the copy from there"
    )


def _copy_once(directory: Path, target: Path, *, last: bool) -> RunCopy:
    path = directory / DATABASE
    read_run(directory)  # which checks that it is one, of a format that is known
    with ExitStack() as opened:
        with reading(path):
            source = opened.enter_context(closing(open_database(path)))
            source.execute("BEGIN")
            made, row = moment(), _checkpoint_of(source)
            checkpoint = None if row is None else checkpoint_row(*row)
            status = _status(source)
        names = [] if checkpoint is None else named_files(checkpoint)
        files = {name: _opened(directory / name, opened) for name in names[:MOST_OPEN]}
        best = [name for name in (NEW_BEST, BEST) if (directory / name).exists()]
        files |= {name: _opened(directory / name, opened) for name in best}
        _check_room(directory, target, names)
        _copy_updates(directory, target, source)
        withdrawn = _copy_secrets(directory, target, source, checkpoint)
        _check_same_checkpoint(directory, row)
        _copy_database(source, target / DATABASE)
        source.close()
        copied = {name: copy_opened(file, target / name) for name, file in files.items()}
    for name in names[MOST_OPEN:]:
        with ExitStack() as opened:
            copied[name] = copy_opened(_opened(directory / name, opened), target / name)
    record = read_run(target)
    if best and not last:
        _check_best(record, copied)
    left_out = _copy_others(directory, target, copied, ended=status == "finished")
    for name in (DATABASE, UPDATES, SECRETS):
        if (target / name).exists():
            copied[name] = describe(target / name)
    sync_folders(target)
    return RunCopy(_manifest(record, made, checkpoint, copied), record, left_out, withdrawn)


# ---- the database ----


def _checkpoint_of(database: sqlite3.Connection) -> tuple[Any, ...] | None:
    found: tuple[Any, ...] | None = next(read_table(database, "checkpoints"), None)
    return found


def _current_checkpoint(directory: Path) -> tuple[Any, ...] | None:
    with reading(directory / DATABASE), closing(open_database(directory / DATABASE)) as database:
        return _checkpoint_of(database)


def _status(database: sqlite3.Connection) -> str:
    found = database.execute("SELECT value FROM meta WHERE key = 'status'").fetchone()
    return "" if found is None else str(found[0]).strip('"')


def _check_same_checkpoint(directory: Path, before: tuple[Any, ...] | None) -> None:
    """Check that no checkpoint was written since: what was copied is not overwritten before there is one."""
    if _current_checkpoint(directory) != before:
        raise ChangedError


def _copy_database(source: sqlite3.Connection, target: Path) -> None:
    """Copy the database as the connection's transaction sees it."""
    make_new(target).close()
    with closing(sqlite3.connect(target.absolute())) as copy:
        source.backup(copy)
        # A database in this mode is one file, and can be read where nothing can be written.
        copy.execute("PRAGMA journal_mode = DELETE")


# ---- what belongs to the updates since the checkpoint ----


def _copy_updates(directory: Path, target: Path, source: sqlite3.Connection) -> None:
    """Copy the ranges of `updates.log` that the database names, to where they are."""
    path, ranges = directory / UPDATES, list[tuple[int, int]]()
    for table in (NEWEST, KEPT):
        if has_table(source, table):
            with reading(path):
                found = source.execute(f"SELECT begin, bytes FROM {table} WHERE tensors IS NULL")
                ranges += convert(found.fetchall(), list[tuple[int, int]])
    if not ranges:
        return
    with ExitStack() as opened:
        file = _opened(path, opened)
        copy = opened.enter_context(make_new(target / UPDATES))
        for begin, size in sorted(ranges):
            if begin < 0 or size < 0:
                raise damage(path, "does not have what run.db says")
            file.seek(begin)
            copy.seek(begin)
            while size and (piece := file.read(min(size, PIECE))):
                copy.write(piece)
                size -= len(piece)
            if size:
                raise ChangedError from damage(path, "does not have what run.db says")


def _copy_secrets(
    directory: Path, target: Path, source: sqlite3.Connection, checkpoint: Checkpoint | None
) -> int:
    """Copy seeds and sums of the releases that the copy has; returns the number of other seeds.

    A seed of a later release is left out: a server that goes on from the copy may make a release of the same
    tasks from other updates. With the same noise, the difference of the two would show the updates.
    """
    path, first = directory / SECRETS, 0 if checkpoint is None else checkpoint.journal
    if not path.exists():
        return 0
    query = "SELECT version FROM journal WHERE name IN ('aggregate', 'released') AND seq >= ?"
    kept = {version for (version,) in source.execute(query, (first,))}
    make_new(target / SECRETS).close()
    with reading(path), closing(open_database(path)) as secrets:
        copy = sqlite3.connect((target / SECRETS).absolute())
        with closing(copy):
            secrets.backup(copy)
            return _withdraw(copy, kept)


def _withdraw(copy: sqlite3.Connection, kept: set[int]) -> int:
    """Delete seeds and sums of other versions; returns the number of seeds."""
    copy.execute("PRAGMA secure_delete = ON")
    deleted = 0
    with copy:
        for table in ("seeds", "sums"):
            if not has_table(copy, table):
                continue
            versions = {version for (version,) in copy.execute(f"SELECT version FROM {table}")} - kept
            copy.executemany(f"DELETE FROM {table} WHERE version = ?", [(version,) for version in versions])
            if has_table(copy, "checksums"):
                seal(copy, table, versions)
            deleted += len(versions) if table == "seeds" else 0
    return deleted


# ---- other files ----


def _opened(path: Path, opened: ExitStack) -> BinaryIO:
    """A file that the database names, open. Raises `ChangedError` where it is gone."""
    try:
        return opened.enter_context(open_regular(path))
    except FileNotFoundError:
        raise ChangedError from damage(path, "is missing")
    except OSError as error:
        raise RunError(f"{path} cannot be copied: {error.strerror or error}") from None


def _check_best(record: RunRecord, copied: dict[str, CopiedFile]) -> None:
    """Check that the best version is that of an evaluation that the copy has."""
    evaluated = {(str(metric.version), str(metric.t)) for metric in record.evaluations()}
    for name in {BEST, NEW_BEST} & copied.keys():
        path = record.path / name
        with reading(path), safe_open(path, "np") as file:
            found = dict(file.metadata() or {})
        if (found.get("version"), found.get("t")) in evaluated:
            continue
        if name == BEST:
            raise ChangedError
        path.unlink()
        del copied[name]


def _copy_others(
    directory: Path, target: Path, copied: dict[str, CopiedFile], *, ended: bool
) -> tuple[str, ...]:
    """Copy files that do not belong to a checkpoint as they are now; returns the names of what is no file."""
    left_out = []
    for path in _others(directory, ended):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink() or not path.is_file() or not is_inside(name):
            left_out += [name] if path.is_symlink() or path.exists() else []
            continue
        with suppress(FileNotFoundError), open_regular(path) as file:
            copied[name] = copy_opened(file, target / name)
    return tuple(left_out)


def _others(directory: Path, ended: bool) -> Iterator[Path]:
    for place, folders, files in walk(directory):
        folder = Path(place)
        top = folder == directory
        if top and not ended and _AT_THE_END in folders:
            folders.remove(_AT_THE_END)
        yield from (folder / name for name in folders if (folder / name).is_symlink())
        for name in sorted(files):
            own = name in _ITS_OWN or _OF_CHECKPOINTS.fullmatch(name) or (name == MODEL and not ended)
            if not (name.endswith(".part") or name.startswith(".") or (top and own)):
                yield folder / name


def _check_room(directory: Path, target: Path, names: list[str]) -> None:
    """Check that the target has room for what is known of the copy."""
    needed = (directory / DATABASE).stat().st_size
    for name in names:
        with suppress(FileNotFoundError):
            needed += (directory / name).stat().st_size
    free = disk_usage(target).free
    if needed > free:
        raise RunError(
            f"{target.parent} has no room for a copy of {directory}: it needs {needed} bytes at least, and "
            f"{free} are free"
        )


def _manifest(
    record: RunRecord, made: str, checkpoint: Checkpoint | None, copied: dict[str, CopiedFile]
) -> Manifest:
    last = next(record.select("SELECT max(version) FROM journal"))[0]
    head = Head()
    if record.has_table("audit"):
        query = "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1"
        head = next((Head(*row) for row in record.select(query)), head)
    with reading(record.path / DATABASE):
        return Manifest(
            made=made, run=identity(record), label=record.label, status=record.status, rows=record.length,
            evaluations=len(record.evaluations()),
            version=max(last or 0, 0 if checkpoint is None else checkpoint.version),
            audit=str(head), files=dict(sorted(copied.items())),
        )  # fmt: skip


def identity(record: RunRecord) -> str:
    """What tells a run from others: its name on a network, or what a simulation is made of."""
    if "run" in record.meta:
        return str(record.meta["run"])
    return f"simulation {record.label} of seed {record.seed}, initial model {record.meta.get('initial')}"


def check_is_run(directory: Path) -> None:
    """Check that a directory is one that can be copied. Raises `UsageError`."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is no directory: give that of a run, or the state of a server")
    if (directory / "helper.db").exists():
        raise UsageError(
            f"{directory} is a helper's state, which is never copied: with an old copy an update could be "
            "released twice. If it is lost, name a new committee"
        )
    if (directory / DATABASE).is_symlink():
        raise UsageError(f"{directory / DATABASE} is a link: give the directory that it is in")
