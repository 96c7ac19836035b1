"""A heap of times, one for each key, with lazy deletion."""

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class LazyHeap(Generic[Key]):
    """The earliest of many times that mostly move later, found in O(log n).

    An entry has a time that its key's real one is never before. Only the earliest entry is looked at: one
    whose time has moved is put back with the real one, and one that is over is dropped. So what moves a time
    later, or ends it, costs nothing when it happens.

    Args:
        time: The real time of a key; None means that the key is over.
    """

    def __init__(self, time: Callable[[Key], float | None]) -> None:
        self._time = time
        self._entries: list[tuple[float, Key]] = []
        self._keys: set[Key] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: Key) -> None:
        """Add a key, unless it is there or over."""
        if key not in self._keys and (time := self._time(key)) is not None:
            self._keys.add(key)
            heappush(self._entries, (time, key))

    def rebuild(self) -> None:
        """Look at all entries: needed where times have moved to earlier ones."""
        timed = ((self._time(key), key) for key in self._keys)
        self._entries = [(time, key) for time, key in timed if time is not None]
        self._keys = {key for _, key in self._entries}
        heapify(self._entries)

    def bound(self) -> float:
        """A time before which no key's is; infinite where there is none. Costs O(1)."""
        return self._entries[0][0] if self._entries else inf

    def first(self) -> float:
        """The earliest time; infinite where there is none."""
        while self._entries:
            entry_time, key = self._entries[0]
            time = self._time(key)
            if time is None:
                heappop(self._entries)
                self._keys.discard(key)
            elif time > entry_time:
                heapreplace(self._entries, (time, key))
            else:
                return entry_time
        return inf

    def due(self, now: float) -> list[Key]:
        """The keys whose time has come; they stay."""
        entries: list[tuple[float, Key]] = []
        while self.bound() <= now and self.first() <= now:
            entries.append(heappop(self._entries))
        for entry in entries:
            heappush(self._entries, entry)
        return [key for _, key in entries]
