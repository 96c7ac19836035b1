"""Versions of Offbeat at both ends of a connection: which of them work together.

Each end tells its own in the call's metadata. An end that tells none is older than this rule, and is served.
"""

import re

from offbeat.version import __version__

VERSION_KEY = "offbeat-version"
"""The metadata key of the version of Offbeat, in both directions."""
METADATA = ((VERSION_KEY, __version__),)
_RELEASE = re.compile(r"(\d{1,6})\.(\d{1,6})(?:\D.*)?", re.ASCII | re.DOTALL)
_MOST = 64  # characters of a version


def refusal(server: str, site: str | None) -> str | None:
    """Why a server and a site cannot work together, in one sentence; None means that they can.

    A server works with sites of its own minor version and of the one before.

    Args:
        server: The server's version, such as "0.4.1".
        site: The site's version. None means that it has told none.
    """
    if site is None:
        return None
    theirs = _release(site)
    if theirs is None:
        return f"version {site[:_MOST]!r} is not allowed: a version is such as {server}"
    if (ours := _release(server)) is None or theirs in _served(*ours):
        return None
    served = " and ".join(f"{major}.{minor}" for major, minor in sorted(_served(*ours)))
    older, newer = ("site", "server") if theirs < ours else ("server", "site")
    return (
        f"this server has Offbeat {server}, which serves sites of {served}, and this site has "
        f"{site[:_MOST]}: upgrade the {older}, or install the {older}'s version at the {newer}"
    )


def _served(major: int, minor: int) -> set[tuple[int, int]]:
    """The releases that a server of this one serves."""
    return {(major, minor), (major, max(minor - 1, 0))}


def _release(version: str) -> tuple[int, int] | None:
    """Major and minor version; None for a text that has none."""
    found = _RELEASE.fullmatch(version) if len(version) <= _MOST else None
    return None if found is None else (int(found[1]), int(found[2]))
