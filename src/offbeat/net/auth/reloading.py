"""Something made of files, made again when they change."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

from offbeat.core.errors import OffbeatError

_log = logging.getLogger(__name__)
T = TypeVar("T")
Seen = tuple[tuple[int, int, int] | None, ...]
"""Of each file when it was written, its size and its number: another one has others."""


class ReloadingFiles(Generic[T]):
    """What `read` makes of `files`, as they are when it is asked for. Raises what `read` raises now.

    What it raises later is reported in the log, once for each change, and what was made before stays;
    `stays` says so to whoever reads the log.
    """

    def __init__(self, files: Sequence[Path], read: Callable[[], T], stays: str) -> None:
        self._files, self._read, self._stays = tuple(files), read, stays
        self._lock = Lock()  # gRPC asks in threads of its own
        self._seen = self._look()
        self._made = read()

    def now(self) -> T:
        """What the files make now, or did before they could not be used."""
        self.changed()
        return self._made

    def changed(self) -> T | None:
        """What the files make, if they have changed since they were last looked at, and can be used."""
        with self._lock:
            seen = self._look()
            if seen == self._seen:
                return None
            self._seen = seen
            try:
                self._made = self._read()
            except OffbeatError as error:
                _log.error("%s; %s", error, self._stays)
                return None
            return self._made

    def _look(self) -> Seen:
        return tuple(_seen(file) for file in self._files)


def _seen(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
