"""The lines of the record of what has left a site or a helper, read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from offbeat.core.errors import RunError, reason_of
from offbeat.runs.damage import damage

FILE = "sent.jsonl"
RUN, HEARTBEAT, DAMAGED = "run", "heartbeat", "damaged line"
"""Kinds of lines that are of no single message: a registration, counted heartbeats, what cannot be read."""
_LONGEST_LINE = 1 << 20


def sent_lines(directory: Path) -> Iterator[dict[str, Any]]:
    """The lines of a state directory's record, in order; one that cannot be read has the kind `DAMAGED`.

    Raises:
        DamageError: The record is no file.
        RunError: It cannot be opened.
    """
    path = directory / FILE
    if not path.is_file():
        # Reading from a named pipe would wait.
        raise damage(path, "is no file" if path.exists() else "is missing")
    try:
        with path.open("rb") as file:
            while data := file.readline(_LONGEST_LINE):
                if data.strip():
                    yield _line(data)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {reason_of(error)}") from None


def has_sent_lines(directory: Path) -> bool:
    """Whether a directory has such a record."""
    return (directory / FILE).exists()


def _line(data: bytes) -> dict[str, Any]:
    try:
        line = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"kind": DAMAGED}
    texts = all(isinstance(line.get(name), str) for name in ("at", "run", "kind"))
    numbers = all(type(line.get(name, 0)) is int for name in ("bytes", "count"))
    return line if texts and numbers else {"kind": DAMAGED}
