"""Which process of a site stays where several have its credential.

A newer connection of a site replaces the older one, whose machine may have died without a word. If both
processes live, they replace each other for ever. So once the one that was there first has come back twice, it
stays, and the other is refused. A process with the key to which the site's token is bound is not replaced by
one without it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from offbeat.net.transport import CloseReason

RETURNS, WITHIN = 2, 600.0
"""Returns of the process that was there first, and seconds for them, after which it stays."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process of a site.

    Attributes:
        process: Its random name.
        keyed: Whether it has shown the key to which the site's token is bound.
    """

    process: str
    keyed: bool = False


@dataclass(slots=True)
class _Rivalry:
    """The process that was there first, when it has come back, and when a connection was replaced last."""

    first: str
    last: float
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=RETURNS))


class Incumbents:
    """The processes of sites that were there first.

    Args:
        clock: Gives seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._rivalries: dict[str, _Rivalry] = {}

    def refusal(self, site: str, older: Holder, newer: Holder) -> CloseReason | None:
        """Why a newer connection is refused while an older one is open; None means that it replaces it.

        Args:
            site: The site's name.
            older: The process of the older connection.
            newer: The process of the newer one.
        """
        if newer.process == older.process:
            return None
        if older.keyed and not newer.keyed:
            return CloseReason(
                f"site {site} is connected with the key of its first connection, and this process has not "
                "that key: does another process run with its credential? Ask the server's operator for a "
                "new kit if this is the site",
                "without key",
            )
        now = self._clock()
        # What is long ago is forgotten, of every site.
        self._rivalries = {name: each for name, each in self._rivalries.items() if now - each.last <= WITHIN}
        rivalry = self._rivalries.setdefault(site, _Rivalry(older.process, now))
        if newer.keyed and not older.keyed:
            rivalry.first = newer.process
        returns, is_first = rivalry.returns, newer.process == rivalry.first
        if not is_first and len(returns) == RETURNS and now - returns[0] <= WITHIN:
            return CloseReason(
                f"another process with the same credential takes part as site {site}, was there first and "
                "stays: run one process for each site, and enrol each site under a name of its own (offbeat "
                "enrol)",
                "duplicate",
            )
        rivalry.last = now
        if is_first:
            returns.append(now)
        return None
