"""Failed logins by address: one that fails too often waits, and is refused unheard meanwhile."""

from collections import deque
from collections.abc import Callable
from time import monotonic

from offbeat.net.address import network

MOST, SECONDS = 20, 60.0
"""Failed logins of one address within so many seconds, after which it waits."""
_ADDRESSES = 10_000


class FailedLogins:
    """The times of the last failed logins of each address, of the 10,000 addresses that failed last.

    A site that is connected is not affected, whatever others at its address do.

    Args:
        clock: Gives seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._times: dict[str, deque[float]] = {}

    def add(self, host: str) -> None:
        """Count a failed login of an address."""
        times = self._times.pop(network(host), deque(maxlen=MOST))
        times.append(self._clock())
        self._times[network(host)] = times
        if len(self._times) > _ADDRESSES:
            del self._times[next(iter(self._times))]

    def refusal(self, host: str) -> str | None:
        """Why an address may not log in now, in one sentence; None means that it may."""
        times = self._times.get(network(host))
        if times is None or len(times) < MOST or (left := times[0] + SECONDS - self._clock()) <= 0:
            return None
        return f"{MOST} logins from {network(host)} have failed: try again in {left:.0f} s"
