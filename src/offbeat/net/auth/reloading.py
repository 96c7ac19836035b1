"""A value read from files, read again when they change."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

from offbeat.core.errors import OffbeatError

_log = logging.getLogger(__name__)
T = TypeVar("T")
FileStamps = tuple[tuple[int, int, int] | None, ...]
"""The time of writing, size and inode of each file; None for a file that is not there."""


class ReloadingFiles(Generic[T]):
    """A value read from files, and read again when one of them changes.

    Args:
        files: The files.
        read: Reads them. What it raises at first is raised. What it raises later is reported in the log,
            once for each change, and the value read before stays.
        on_error_message: The end of that line in the log: what stays in force.
        on_reload: Called with the value whenever it was read again.
    """

    def __init__(
        self,
        files: Sequence[Path],
        read: Callable[[], T],
        on_error_message: str,
        on_reload: Callable[[T], None] = lambda _: None,
    ) -> None:
        self._on_reload = on_reload
        self._files, self._read, self._on_error_message = tuple(files), read, on_error_message
        # gRPC asks in threads of its own.
        self._lock = Lock()
        self._stamps = self._read_stamps()
        self._value = read()

    def now(self) -> T:
        """The value of the files now, or of the last time they could be read."""
        self.changed()
        return self._value

    def changed(self) -> T | None:
        """The new value, if the files have changed since the last call and can be read."""
        with self._lock:
            stamps = self._read_stamps()
            if stamps == self._stamps:
                return None
            self._stamps = stamps
            try:
                self._value = self._read()
            except OffbeatError as error:
                _log.error("%s; %s", error, self._on_error_message)
                return None
            _log.info("%s: read again", ", ".join(map(str, self._files)))
            self._on_reload(self._value)
            return self._value

    def _read_stamps(self) -> FileStamps:
        return tuple(_stamp(file) for file in self._files)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
