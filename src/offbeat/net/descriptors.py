"""The descriptors of this process: how many there may be, and how many of them connections may take.

Each connection takes one, as does each open file. What connections may take is less than there are, so that a
flood of them leaves enough for the run's own files.
"""

import logging
from contextlib import suppress
from pathlib import Path

from offbeat.core.errors import UsageError

try:
    import resource
except ImportError:
    # Windows lacks this module, and its sockets are no files.
    resource = None  # type: ignore[assignment]

RESERVED = 256
"""Descriptors for all but connections: checkpoints, SQLite, files of callbacks, pipes to other processes."""
_LEAST = 64  # descriptors for connections
_PAGE = 128  # connections of the live page, of which a browser opens six
_UNLIMITED = 1 << 16
# macOS refuses a soft limit beyond this, whatever the hard limit is.
_MACOS = 10_240
_LOG = logging.getLogger("offbeat.net")


def raise_limit() -> None:
    """Raise the soft limit of this process to its hard one.

    Raises:
        UsageError: There are too few descriptors for a server.
    """
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, _MACOS):
        if _bounded(soft) < _bounded(wanted) <= _bounded(hard):
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                break
    found = limit()
    _LOG.debug("up to %d descriptors (was %d): %d connections of sites, %d of the page", found,
               _bounded(soft), for_sites(), for_page())  # fmt: skip
    if found < RESERVED + _LEAST:
        raise UsageError(
            f"open files = {found}: a server needs at least {RESERVED + _LEAST}; raise the limit (ulimit -n, "
            "LimitNOFILE= of a system service)"
        )


def limit() -> int:
    """How many descriptors this process may have."""
    return _UNLIMITED if resource is None else _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def for_page() -> int:
    """How many connections the live page may have."""
    return min(_PAGE, _free() // 8)


def for_sites() -> int:
    """How many connections the port of the sites may have."""
    return _free() - for_page()


def opened() -> list[int]:
    """The descriptors of this process; empty where the system does not tell."""
    with suppress(OSError):
        return [int(path.name) for path in Path("/dev/fd").iterdir()]
    return []


def _free() -> int:
    return max(limit() - RESERVED, _LEAST)


def _bounded(value: int) -> int:
    """A limit as a number: "none" is a negative or a huge one."""
    return value if 0 <= value < _UNLIMITED else _UNLIMITED
