"""The event queue: one heap keyed (time, priority, sequence).

At equal times clients join before anything else, arrivals and losses come before departures, and
timers come last; within a priority, first scheduled is first out. Ties never depend on hashing or
on which thread was faster.

Times that mean the same can differ by rounding. With a resolution, events that are so near to the next one
happen with it: at its time, and in the order above. A timer keeps the time for which the schedule has set it.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from offbeat.core.events import Arrived, Event, Joined, Left, Lost, Measured, Ready, Timer, WantsModel

_PRIORITY: dict[type, int] = {
    Joined: 0, WantsModel: 1, Ready: 1, Measured: 1, Arrived: 1, Lost: 1, Left: 2, Timer: 3
}  # fmt: skip

IsTrue = Callable[[float, Event], bool]
"""is_true(time, event)."""

_Entry = tuple[float, int, int, Event]
"""Time, priority, sequence number, event."""


class EventQueue:
    """Future events in the order in which they happen.

    Args:
        resolution: Relative difference up to which two times are one instant. 0 means equal numbers only.
    """

    def __init__(self, resolution: float = 0.0) -> None:
        self._heap: list[_Entry] = []
        self._sequence = 0
        self._resolution = resolution
        # Time of the events that are fed now.
        self._instant = -1.0

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

    def pop(self, is_true: IsTrue = lambda *_: True) -> tuple[float, Event] | None:
        """The next event and its time; None means that the queue is empty.

        Args:
            is_true: Whether an event that was scheduled for a time is still to happen. The queue does not
                keep it: a method of the queue's owner would keep the owner, and all of a run, in memory.
        """
        heap = self._heap
        while heap:
            if self._resolution and self.time > self._instant:
                self._begin_instant(is_true)
                continue
            time, _, _, event = heappop(heap)
            if is_true(time, event):
                return time, event
        return None

    def _begin_instant(self, is_true: IsTrue) -> None:
        """Give the events of the next instant one time, that of the earliest."""
        together: list[_Entry] = []
        while self._heap and (not together or self.time <= together[0][0] * (1 + self._resolution)):
            entry = heappop(self._heap)
            if is_true(entry[0], entry[3]):
                together.append(entry)
        for time, priority, sequence, event in together:
            self._instant = together[0][0]
            heappush(self._heap, (time if type(event) is Timer else self._instant, priority, sequence, event))
