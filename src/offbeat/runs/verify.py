"""Verification of a directory's files: the database, its rows, every file of tensors, permissions."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from offbeat.core.errors import OffbeatError
from offbeat.runs.damage import MISMATCH, damage, reading
from offbeat.runs.record import Checkpoint, RunRecord, holds_run, is_site, read_run
from offbeat.runs.schema import DATABASE, MODEL, SITE_FILES, cached_file, update_file, version_file
from offbeat.runs.tensor_format import read_contents


@dataclass
class Verification:
    """The result of checking one directory.

    Attributes:
        directory: The directory, of a run or of a site.
        problems: What is wrong, one line each, with what to do.
        exposed: One line about files of a private directory that others can read or write, and with what to
            do. None means that there are none. Nothing is lost by it, so it prevents nothing.
        files: Files of tensors, and databases, that were read.
        nbytes: Their bytes.
        record: The run, where its database can be read.
    """

    directory: Path
    problems: list[str] = field(default_factory=list)
    exposed: str | None = None
    files: int = 0
    nbytes: int = 0
    record: RunRecord | None = None

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Context whose error is a problem."""
        try:
            yield
        except OffbeatError as error:
            self.problems.append(str(error))

    def count(self, path: Path) -> None:
        """Count a file that is read."""
        self.files += 1
        self.nbytes += path.stat().st_size


def directories(directory: Path) -> list[Path]:
    """The directories of runs and of sites, this one or below it."""
    inside = sorted(path for path in directory.rglob("*") if path.is_dir())
    return [path for path in (directory, *inside) if holds_run(path) or is_site(path)]


def verify(directory: Path) -> Verification:
    """Read every file of a run or of a site, and check it as far as possible without training.

    Args:
        directory: The directory. No process may be writing it.
    """
    verification = Verification(directory)
    private = is_site(directory)
    if private and not (directory / SITE_FILES[0]).is_file():
        verification.problems.append(str(damage(directory / SITE_FILES[0], "is missing")))
    elif not private:
        with verification.noting():
            _verify_run(verification)
        private = verification.record is not None and verification.record.served
    for path in sorted(directory.rglob("*.safetensors")):
        with verification.noting():
            verification.count(path)
            found = _checksum(path)
            recorded = (
                verification.record.meta.get("model") if verification.record and path.name == MODEL else None
            )
            if recorded not in (None, found):
                raise damage(path, "is not the model that the run has recorded")
    if private:
        verification.exposed = _exposed(directory)
    return verification


def _checksum(path: Path) -> str:
    """The checksum of a file of tensors. Raises `DamageError` where it is damaged, as `read_file` does."""
    if path.exists() and not path.is_file():
        # Reading from a named pipe would wait.
        raise damage(path, "is no file")
    with reading(path), path.open("rb") as file:
        found = read_contents(file, os.fstat(file.fileno()).st_size)
    if not found.intact:
        raise damage(path, MISMATCH)
    return found.checksum


def _verify_run(verification: Verification) -> None:
    """The database: its structure, its rows, and the files that it names."""
    record = verification.record = read_run(verification.directory)
    database = verification.directory / DATABASE
    verification.count(database)
    first = next(record.select("PRAGMA integrity_check"))[0]
    if first != "ok":
        raise damage(database, f"is malformed ({' '.join(first.split())})")
    rows = _consecutive(record)
    record.evaluations(), record.client_metrics(), record.client_samples(), record.site_names()
    checkpoint = record.checkpoint()
    if checkpoint is None and record.served and record.status != "finished":
        raise damage(database, "has no checkpoint")
    if checkpoint is not None:
        if checkpoint.journal > rows:
            raise damage(database, f"has {rows} journal rows, its checkpoint {checkpoint.journal}")
        for name in named_files(checkpoint):
            if not (verification.directory / name).is_file():
                raise damage(verification.directory / name, "is missing")
    if record.status == "finished" and not (verification.directory / MODEL).is_file():
        raise damage(verification.directory / MODEL, "is missing")


def _consecutive(record: RunRecord) -> int:
    """The number of journal rows, which follow each other."""
    count = 0
    for row in record.rows():
        if row.seq != count:
            raise damage(record.path / DATABASE, f"lacks journal row {count}")
        count += 1
    return count


def named_files(checkpoint: Checkpoint) -> list[str]:
    """The files that a checkpoint needs; that of the current version it does not."""
    based = [version for version, _, _ in checkpoint.updates.values()]
    sent = {*checkpoint.bases.values(), *checkpoint.fresh.values(), *based} - {checkpoint.version}
    good = set() if checkpoint.good in (None, checkpoint.version) else {version_file(checkpoint.good)}
    versions = sorted({version_file(version, checkpoint.number) for version in sent} | good)
    updates = [update_file(task) for task in checkpoint.updates]
    cached = [cached_file(task) for task, _, _ in checkpoint.cached.values()]
    return [checkpoint.state, *versions, *updates, *checkpoint.clients.values(), *cached]


def _exposed(directory: Path) -> str | None:
    """The files of a private directory that others can read or write, in one line."""
    if os.name != "posix":
        return None
    modes = {path: path.lstat().st_mode & 0o777 for path in (directory, *sorted(directory.rglob("*")))}
    found = [path for path, mode in modes.items() if mode & 0o077]
    if not found:
        return None
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"{found[0]}{more} can be read or written by others (mode {modes[found[0]]:04o}); lost: nothing; "
        f"chmod -R go= {directory}"
    )
