"""The event queue: one heap keyed (time, priority, sequence).

At equal times clients join before anything else, arrivals and losses come before departures, and
timers come last; within a priority, first scheduled is first out. Ties never depend on hashing or
on which thread was faster.
"""

from heapq import heappop, heappush

from offbeat.core.events import Arrived, Event, Joined, Left, Lost, Measured, Ready, Timer, WantsModel

_PRIORITY: dict[type, int] = {
    Joined: 0, WantsModel: 1, Ready: 1, Measured: 1, Arrived: 1, Lost: 1, Left: 2, Timer: 3
}  # fmt: skip


class EventQueue:
    """Future events in the order in which they happen."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Event]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def time(self) -> float:
        """When the next event happens."""
        return self._heap[0][0]

    def push(self, time: float, event: Event) -> None:
        """Schedule an event for `time` (seconds)."""
        heappush(self._heap, (time, _PRIORITY[type(event)], self._sequence, event))
        self._sequence += 1

    def pop(self) -> tuple[float, Event]:
        """The next event and its time."""
        time, _, _, event = heappop(self._heap)
        return time, event
