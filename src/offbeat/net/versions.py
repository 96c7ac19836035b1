"""Versions of Offbeat at both ends of a connection, which each end tells in the call's metadata.

Whether two ends work together depends on the version of the wire alone (`net/grpc/protocol.py`). Packages of
different minor versions are a warning.
"""

import re

from offbeat.core.printable import printable
from offbeat.version import __version__

VERSION_KEY = "offbeat-version"
"""The metadata key of the version of Offbeat, in both directions."""
METADATA = ((VERSION_KEY, __version__),)
_RELEASE = re.compile(r"(\d{1,6})\.(\d{1,6})(?:\D.*)?", re.ASCII | re.DOTALL)
_MOST = 64  # characters of a version


def difference(server: str, site: str | None) -> str | None:
    """How the minor versions of a server and a site differ, as a clause; None means that they do not.

    Args:
        server: The server's version, such as "0.4.1".
        site: The site's version, whatever it has told. None means that it has told none.
    """
    if site is None or _release(server) is None or _release(site) == _release(server):
        return None
    return f"the site has Offbeat {printable(site[:_MOST])}, and this server {server}"


def _release(version: str) -> tuple[int, int] | None:
    """Major and minor version; None for a text that has none."""
    found = _RELEASE.fullmatch(version) if len(version) <= _MOST else None
    return None if found is None else (int(found[1]), int(found[2]))
