"""One writer a run: an advisory lock on a file, which the system frees when the process ends."""

import fcntl
from pathlib import Path
from typing import IO

from offbeat.core.errors import UsageError


def lock(directory: Path) -> IO[str]:
    """Hold the run's lock until the returned file is closed."""
    file = (directory / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UsageError(
            f"{directory}: another process is writing this run; wait for it or stop it"
        ) from None
    return file
