"""Backup of a run into a folder of copies, each in a folder of its own that is named by its time."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from shutil import rmtree

from offbeat.backup.copying import make_new, sync_folders, writing
from offbeat.backup.manifest import MANIFEST, Manifest, copies_in, folder_name
from offbeat.backup.run_copy import RunCopy, check_is_run, copy_run, identity
from offbeat.core.errors import DamageError, RunError, UsageError
from offbeat.net.audit import problems
from offbeat.net.audit_record import audit_rows
from offbeat.net.server.stored_updates import damaged_updates
from offbeat.runs.durable_files import sync_directory
from offbeat.runs.lock import lock
from offbeat.runs.record import RunRecord, holds_run, is_site, read_run
from offbeat.runs.verify import Verification, verify

_PART = ".part-"  # how the name of a folder begins that is no whole copy


@dataclass(frozen=True)
class Backup:
    """A backup that was made.

    Attributes:
        folder: The folder of the new copy.
        copy: The copy.
        deleted: Number of older copies that were deleted.
    """

    folder: Path
    copy: RunCopy
    deleted: int


def backup(directory: Path, target: Path, keep: int | None = None) -> Backup:
    """Copy a run into a new folder of a target, whether a server writes the run or not.

    The copy is read and verified before it gets its name, so a folder with a name is a whole copy.

    Args:
        directory: The run's directory.
        target: The folder of copies, of this run alone. It is made if it is missing.
        keep: Number of copies that stay, at least 1; older ones are deleted after the new one is there. None
            means all.

    Raises:
        UsageError: What is asked cannot be copied to there.
        DamageError: The run is damaged; no copy was made, and none deleted.
        RunError: The copy cannot be written, or the run changes faster than it can be copied.
    """
    if keep is not None and keep < 1:
        raise UsageError(f"keep = {keep} is not allowed: at least 1 copy stays")
    check_is_server(directory)
    record = read_run(directory)
    _check_target(directory, target)
    kept = f"the copies in {target} are as they were"
    with writing(target, kept):
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(target):
        _check_same_run(target, record)
        with writing(target, kept):
            _clear(target)
            part = target / f"{_PART}{token_hex(4)}"
            try:
                part.mkdir(mode=0o700)
                copy = copy_run(directory, part)
                _check_whole(directory, part)
                with make_new(part / MANIFEST) as file:
                    file.write(copy.manifest.text())
                sync_folders(part)
                folder = target / folder_name(copy.manifest.made)
                part.rename(folder)
            except BaseException:
                rmtree(part, ignore_errors=True)
                raise
            sync_directory(target)
            return Backup(folder, copy, _delete_older(target, keep))


def whole_copies(target: Path) -> dict[Path, Manifest]:
    """The copies in a folder whose manifests can be read, from the oldest to the newest."""
    found = {}
    for path in copies_in(target):
        with suppress(DamageError):
            found[path] = Manifest.read(path)
    return found


def file_problems(verification: Verification) -> Iterator[str]:
    """What is wrong with the files of a run, a line for each problem.

    Args:
        verification: The verification of the run's directory, which no process writes.
    """
    yield from verification.problems
    if verification.record is None or not verification.record.served:
        return
    try:
        yield from damaged_updates(verification.record)
        yield from (f"the audit's {problem}" for problem in problems(audit_rows(verification.record)))
    except DamageError as error:
        yield str(error)


def check_is_server(directory: Path) -> None:
    """Check that a directory is a run's, and no site's or helper's. Raises `UsageError`."""
    check_is_run(directory)
    if is_site(directory):
        raise UsageError(
            f"{directory} is a site's state, which is not backed up: a site that has lost it begins with an "
            "empty directory. If its examples have a budget, keep the newest examples.safetensors elsewhere"
        )


def _check_target(directory: Path, target: Path) -> None:
    here, there = directory.resolve(), target.resolve()
    if there == here or here in there.parents:
        raise UsageError(f"{target} is inside of {directory}, and would be lost with it: choose another disk")
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is no directory: give a folder for copies")
    if target.is_dir() and (holds_run(target) or is_site(target) or (target / MANIFEST).exists()):
        raise UsageError(f"{target} is a run, a site's state or a copy itself: give a folder for copies")


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Context in which this process alone writes to a folder of copies."""
    try:
        held = lock(target)
    except UsageError as error:
        what = error if "link" in str(error) else f"another backup is writing to {target}: wait for it"
        raise UsageError(str(what)) from None
    except OSError as error:
        raise RunError(f"cannot write to {target}: {error.strerror}") from None
    try:
        yield
    finally:
        held.release()


def _check_same_run(target: Path, record: RunRecord) -> None:
    for path, manifest in whole_copies(target).items():
        if manifest.run != identity(record):
            raise UsageError(
                f"{target} has copies of another run ({manifest.label}, {path.name}): choose another folder"
            )


def _check_whole(directory: Path, part: Path) -> None:
    """Read everything in a copy, and check it. Raises `DamageError`."""
    for problem in file_problems(verify(part)):
        what = problem.replace(f"{part}/", "")
        raise DamageError(
            directory, f"is damaged, so it was not copied ({what})", "nothing more by this",
            f"offbeat verify {directory}, when no process writes it; older copies are as they were",
        )  # fmt: skip


def _clear(target: Path) -> None:
    """Delete what processes have left that were killed in the middle."""
    for path in target.glob(f"{_PART}*"):
        rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _delete_older(target: Path, keep: int | None) -> int:
    """Delete all but the newest copies; one in the middle of it has no name any more."""
    older = list(whole_copies(target))[: -keep if keep else 0]
    for path in older:
        part = path.with_name(f"{_PART}{token_hex(4)}")
        path.rename(part)
        rmtree(part)
    return len(older)
