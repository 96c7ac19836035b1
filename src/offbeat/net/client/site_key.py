"""The key of a site or a helper, in its state: for it alone the server renews the token of its kit.

Whoever copies a kit copies no key. The key is made before the first connection, and durable before a server
hears of it, so that a process may die in between.
"""

import re
from pathlib import Path
from secrets import token_urlsafe

from offbeat.core.errors import UsageError, reason_of
from offbeat.documents import read_text
from offbeat.runs.durable_files import make_directory, write_private

SITE_KEY = "renewal.key"
"""The key's file in a state."""
_KEY = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


def site_key(state: Path) -> str:
    """The key of a state; a new one where it has none.

    Raises:
        UsageError: The key cannot be read or written.
    """
    path = state / SITE_KEY
    try:
        key = read_text(path, 100).strip()
    except FileNotFoundError:
        key = _make(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {reason_of(error)}") from None
    if not _KEY.fullmatch(key):
        raise UsageError(
            f"{path} is no key: restore it, or delete it and ask the server's operator for a new kit"
        )
    return key


def _make(path: Path) -> str:
    key = token_urlsafe(32)
    try:
        make_directory(path.parent)
        write_private(path, f"{key}\n".encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {reason_of(error)}") from None
    return key
