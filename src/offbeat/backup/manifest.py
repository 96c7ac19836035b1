"""Manifest of a copy: what it is of, and the length and checksum of each of its files.

A copy may come from others. So its manifest is read within limits, and it names no file outside of the copy.
"""

import re
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Annotated, Self

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from offbeat.core.errors import DamageError
from offbeat.documents import read_text
from offbeat.runs.schema import DATABASE, LOCK
from offbeat.version import __version__

MANIFEST = "manifest.json"
FORM = 1
"""Number of the form of manifests and copies."""
SECRETS, SECRETS_JOURNAL, UPDATES, SERVER = "secrets.db", "secrets.db-journal", "updates.log", "server.json"
NEVER_COPIED = frozenset(
    {f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal", SECRETS_JOURNAL, LOCK, SERVER, MANIFEST}
)
"""Files of processes: those of SQLite, a lock, a server's number."""
_MOST_BYTES = 2**26  # of a manifest: those of half a million files
_LONGEST, _DEEPEST = 1000, 20  # characters and folders of a file's name
_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}Z", re.ASCII)
_REMEDY = "use another copy"
Count = Annotated[int, Meta(ge=0, lt=2**62)]


class CopiedFile(Struct, frozen=True):
    """Length and SHA-256 of a file."""

    bytes: Count
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Manifest(Struct, frozen=True, kw_only=True):
    """What a copy is.

    Attributes:
        offbeat_backup: Number of its form.
        made: When the run was as it is in the copy, in UTC.
        offbeat: Version of Offbeat that made it.
        run: Identifier of the run.
        label: What the run is called.
        status: Status of the run.
        rows: Number of journal rows.
        evaluations: Number of evaluations.
        version: Number of the current global model.
        audit: Head of the audit, "SEQ:HASH".
        files: The files by their names below the copy.
        checksum: SHA-256 of all this.
    """

    offbeat_backup: int = FORM
    made: str
    offbeat: str = __version__
    run: str
    label: str
    status: str
    rows: Count
    evaluations: Count
    version: Count
    audit: str
    files: dict[str, CopiedFile]
    checksum: str = ""

    @classmethod
    def read(cls, copy: Path) -> Self:
        """Read the manifest of a copy.

        Raises:
            DamageError: It is missing, damaged or of a form that this version does not know.
        """
        path = copy / MANIFEST
        try:
            manifest = msgspec.json.decode(read_text(path, _MOST_BYTES), type=cls)
        except OSError as error:
            raise _damage(path, f"cannot be read ({error.strerror or error})") from None
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _damage(path, f"is no whole manifest ({error})") from None
        if manifest.offbeat_backup != FORM:
            raise _damage(path, f"has form {manifest.offbeat_backup}, and this version reads {FORM}")
        if manifest.checksum != manifest._digest():
            raise _damage(path, "does not match its checksum")
        for name in manifest.files:
            if not is_inside(name):
                raise _damage(path, f"names {name[:60]!r}, which is no file of a copy")
        if DATABASE not in manifest.files:
            raise _damage(path, f"names no {DATABASE}")
        return manifest

    def text(self) -> bytes:
        """The manifest as the bytes of its file."""
        signed = replace(self, checksum=self._digest())
        return msgspec.json.format(msgspec.json.encode(signed), indent=1) + b"\n"

    def _digest(self) -> str:
        plain = replace(self, checksum="")
        return sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files.values())

    @property
    def text_of_state(self) -> str:
        """What the copy holds, in words."""
        return f"version {self.version}, {self.rows} journal rows, as of {self.made}"


def is_inside(name: str) -> bool:
    """Whether a name is that of a file below the directory that it is relative to, and may be copied."""
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") and not set(part) & set("\\\0") for part in parts)
    fits = len(name) <= _LONGEST and len(parts) <= _DEEPEST
    return plain and fits and name not in NEVER_COPIED and not PurePosixPath(name).is_absolute()


def moment() -> str:
    """Now, in UTC, to the millisecond."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def folder_name(made: str) -> str:
    """The name of the folder of a copy that was made at a time."""
    return made.replace(":", "-")


def copies_in(target: Path) -> list[Path]:
    """The folders of copies in a folder, from the oldest to the newest, whole or not."""
    return sorted(path for path in target.iterdir() if _NAME.fullmatch(path.name) and path.is_dir())


def _damage(path: Path, problem: str) -> DamageError:
    return DamageError(path, problem, "this copy", _REMEDY)
