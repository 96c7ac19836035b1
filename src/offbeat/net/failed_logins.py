"""Failed logins by address: an address that fails too often waits, and is refused at once until then."""

from collections import deque
from collections.abc import Callable
from time import monotonic

from offbeat.net.address import network
from offbeat.units import duration_text

MOST, SECONDS = 20, 60.0
"""Failed logins of one address within `SECONDS`, after which it waits."""
ADDRESSES = 10_000
"""Addresses that are remembered; the one that was heard of least recently is forgotten first."""


class FailedLogins:
    """The times of the last failed logins of each address.

    An address from which a login has succeeded is not limited: others there could keep its sites out.

    Args:
        clock: Gives seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        # Times of failed logins by network; None after a login that succeeded.
        self._times: dict[str, deque[float] | None] = {}

    def failed(self, host: str) -> None:
        """Count a failed login of an address."""
        place = network(host)
        times = self._times.pop(place, deque(maxlen=MOST))
        if times is not None:
            times.append(self._clock())
        self._remember(place, times)

    def succeeded(self, host: str) -> None:
        """Note that a login from an address has succeeded."""
        self._times.pop(network(host), None)
        self._remember(network(host), None)

    def refusal(self, host: str) -> str | None:
        """Why an address may not log in now, in one sentence; None means that it may."""
        times = self._times.get(network(host))
        if times is None or len(times) < MOST or (left := times[0] + SECONDS - self._clock()) <= 0:
            return None
        return f"{MOST} logins from {network(host)} have failed: try again in {duration_text(round(left))}"

    def _remember(self, place: str, times: deque[float] | None) -> None:
        self._times[place] = times
        if len(self._times) > ADDRESSES:
            del self._times[next(iter(self._times))]
