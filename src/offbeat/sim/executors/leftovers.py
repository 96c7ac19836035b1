"""Garbage of finished runs, which a run sets aside from the collector.

A run freezes what was there before it, because the collector would look through all of PyTorch again and
again. So garbage in circles of references, such as a learner that refers to itself, would stay for as long
as a process makes runs. It is collected before a run if the process has grown.
"""

import gc

from offbeat.vectors.allocator import GROWTH, resident


class Leftovers:
    """Collects the garbage of finished runs when the process has grown by `growth` bytes since the last time.

    A collection takes some tenths of a second, as long as many a run. Where the size is unknown, each
    `EVERY`-th run has one.
    """

    EVERY = 50

    def __init__(self, growth: int = GROWTH) -> None:
        self._growth, self._size, self._runs = growth, resident(), 0

    def collect(self) -> None:
        """Collect, if it is time."""
        size = resident()
        self._runs += 1
        self._size = min(self._size, size)
        if size > self._size + self._growth or (not size and self._runs % self.EVERY == 0):
            gc.collect()
            self._size = resident()


collect_leftovers = Leftovers().collect
"""collect_leftovers(): collects what finished runs of this process have left, if it is time."""
