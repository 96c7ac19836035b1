"""Restoring of a run from a copy, into a new directory and with verification."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from errno import EBUSY, EEXIST, ENOTEMPTY
from pathlib import Path
from secrets import token_hex
from shutil import disk_usage, rmtree

from filelock import BaseFileLock

from offbeat.backup.backup import file_problems, whole_copies
from offbeat.backup.copying import copy_opened, open_regular, sync_folders, writing
from offbeat.backup.manifest import MANIFEST, Manifest, copies_in
from offbeat.core.errors import DamageError, RunError, UsageError
from offbeat.net.audit import INSERT, AuditLog, Head
from offbeat.runs.damage import reading
from offbeat.runs.database import open_database
from offbeat.runs.durable_files import sync_directory
from offbeat.runs.lock import lock
from offbeat.runs.record import RunRecord, holds_run, read_run
from offbeat.runs.schema import DATABASE, LOCK
from offbeat.runs.verify import verify


@dataclass(frozen=True)
class Restored:
    """What was restored: the copy, its manifest, and the run in its directory."""

    copy: Path
    manifest: Manifest
    record: RunRecord


def restore(source: Path, directory: Path, by: str | None = None) -> Restored:
    """Restore a run.

    All is copied beside the directory, verified, and then given its name. So the directory has the whole run
    or is as it was before, whenever the process dies.

    Args:
        source: A copy, or a folder of copies, whose newest one is taken.
        directory: Where the run is to be. It is missing, or empty.
        by: The person who restores it, for the audit. None means the system's user.

    Raises:
        UsageError: The source is no copy, or the directory is not empty.
        DamageError: The copy is damaged.
        RunError: The directory cannot be written.
    """
    copy = _copy_of(source)
    _check_empty(directory)
    with _told_of_others(copy):
        manifest = Manifest.read(copy)
        _check_files(copy, manifest)
        kept = f"{directory} is as it was"
        with writing(directory, kept):
            parent = directory.resolve().parent
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            prefix = f".{directory.resolve().name}.restoring-"
            _clear(parent, prefix)
            part = parent / f"{prefix}{token_hex(4)}"
            part.mkdir(mode=0o700)
            held = lock(part)
            try:
                _fill(copy, part, manifest, by)
                _give_name(part, directory, held)
            except BaseException:
                held.release()
                rmtree(part, ignore_errors=True)
                raise
    return Restored(copy, manifest, read_run(directory))


def _copy_of(source: Path) -> Path:
    """The copy itself, or the newest one in a folder of copies, even if it is damaged."""
    if not source.is_dir():
        raise UsageError(f"{source} is no directory: give a copy that offbeat backup has made")
    if (source / MANIFEST).exists():
        return source
    if copies := copies_in(source):
        return copies[-1]
    if holds_run(source):
        raise UsageError(
            f"{source} is a run and no copy of offbeat backup, as it has no {MANIFEST}: a mirror is served "
            f"as it is, with --state {source}"
        )
    raise UsageError(f"{source} has no copies: give what offbeat backup DIR TARGET has written")


def _check_empty(directory: Path) -> None:
    if not (directory.exists() or directory.is_symlink()):
        return
    if directory.is_symlink() or not directory.is_dir():
        raise UsageError(f"{directory} is no directory: give one that is missing or empty")
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError as error:
        raise UsageError(f"{directory} cannot be read: {error.strerror}") from None
    if directory.is_mount():
        raise UsageError(f"{directory} is where a disk is mounted: give a directory below it")
    if names:
        raise UsageError(
            f"{directory} is not empty (it has {names[0]}): nothing was restored. Move what is there away, "
            "or give another directory"
        )


@contextmanager
def _told_of_others(copy: Path) -> Iterator[None]:
    """Context in which an error of a damaged copy names the newest one before it."""
    try:
        yield
    except DamageError as error:
        others = [path for path in whole_copies(copy.parent) if path.name < copy.name]
        if not others:
            raise
        remedy = f"restore the one before it: offbeat restore {others[-1]} DIR"
        raise DamageError(error.path, error.problem, error.lost, remedy) from None


def _check_files(copy: Path, manifest: Manifest) -> None:
    """Check that all files are there, inside of the copy, with their lengths. Raises `DamageError`."""
    inside = copy.resolve()
    for name, file in manifest.files.items():
        path = copy / name
        if path.is_symlink() or inside not in path.resolve().parents:
            raise _damage(path, "is a link")
        if not path.is_file():
            raise _damage(path, "is missing")
        if (size := path.stat().st_size) != file.bytes:
            raise _damage(path, f"has {size} bytes, and the copy had {file.bytes}")


def _fill(copy: Path, part: Path, manifest: Manifest, by: str | None) -> None:
    """Copy the files, and check them against the manifest and each other."""
    free = disk_usage(part).free
    if manifest.bytes > free:
        raise RunError(
            f"{part.parent} has no room for {copy}: it needs {manifest.bytes} bytes, and {free} are free"
        )
    for name, told in manifest.files.items():
        with reading(copy / name):
            opened = open_regular(copy / name)
        with opened as file:
            if copy_opened(file, part / name) != told:
                raise _damage(copy / name, "is not as it was copied")
    for problem in file_problems(verify(part)):
        raise _damage(copy, f"is not whole ({problem.replace(f'{part}/', '')})")
    _record(part, manifest, by)
    sync_folders(part)


def _record(part: Path, manifest: Manifest, by: str | None) -> None:
    """Add a row to the run's audit, where it has one."""
    record = read_run(part)
    if not record.has_table("audit"):
        return
    audit = AuditLog(by=by)
    last = next(record.select("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1"), None)
    audit.open(str(record.meta.get("run", "")), Head() if last is None else Head(*last))
    audit.record(audit.operator, {"action": "run.restore", "copy": manifest.made, "rows": manifest.rows})
    path = part / DATABASE
    with reading(path), closing(open_database(path, write=True)) as database, database:
        database.executemany(INSERT, audit.take())


def _give_name(part: Path, directory: Path, held: BaseFileLock) -> None:
    """Let the restored directory take its name, if nothing has taken it meanwhile."""
    held.release()
    with suppress(OSError):
        (part / LOCK).unlink()
    try:
        part.rename(directory)
    except OSError as error:
        if error.errno in (ENOTEMPTY, EEXIST, EBUSY):
            raise UsageError(f"{directory} is not empty any more: nothing was restored") from None
        raise
    sync_directory(directory.resolve().parent)


def _clear(parent: Path, prefix: str) -> None:
    """Delete what processes have left that were killed in the middle."""
    for path in parent.iterdir():
        if path.name.startswith(prefix):
            with suppress(UsageError, OSError):
                lock(path).release()
                rmtree(path)


def _damage(path: Path, problem: str) -> DamageError:
    return DamageError(path, problem, "this copy", "use another copy")
