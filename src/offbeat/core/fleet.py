"""The fleet: the clients present, the idle ones, and the size of each one's data."""

from array import array
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from offbeat.core.errors import AlgorithmError
from offbeat.core.events import ClientId
from offbeat.core.streams import below

Labels = Sequence[tuple[int, ...] | None]
"""Number of samples of each class, by client; None means unknown."""


class SavedFleet(Struct, frozen=True):
    """The state of a fleet, by client; -1 samples of one that is not present."""

    samples: list[int]
    steps_per_epoch: list[int]
    idle: list[ClientId]
    labels: dict[ClientId, tuple[int, ...]]


class Fleet:
    """Clients that have joined and not left.

    Idle clients are in one list with each one's position beside it, so that drawing one, making it busy and
    making it idle again cost O(1) at any population. A client costs 32 bytes until its first task.
    """

    def __init__(self) -> None:
        # Number of samples by client; -1 means that the client is not present.
        self._samples: array[int] = array("q")
        self._epoch: array[int] = array("q")
        # Position of a client in `_idle`; -1 while it is busy or away.
        self._place: array[int] = array("q")
        self._idle: array[int] = array("q")
        # Numbers of samples by class of the clients whose numbers are known.
        self._labels: dict[ClientId, tuple[int, ...]] = {}
        self.size = 0
        self.total_samples = 0

    def __len__(self) -> int:
        return self.size

    def __contains__(self, client: ClientId) -> bool:
        return 0 <= client < len(self._samples) and self._samples[client] >= 0

    def __iter__(self) -> Iterator[ClientId]:
        return (c for c, n in enumerate(self._samples) if n >= 0)

    @property
    def idle_count(self) -> int:
        """Number of clients present without a task."""
        return len(self._idle)

    def is_idle(self, client: ClientId) -> bool:
        """Whether this client is present and without a task."""
        return 0 <= client < len(self._place) and self._place[client] >= 0

    def idle(self) -> list[ClientId]:
        """The idle clients, by number."""
        return sorted(self._idle)

    def samples(self, client: ClientId) -> int:
        """n_i, the client's number of training samples."""
        return self._samples[client]

    def steps_per_epoch(self, client: ClientId) -> int:
        """⌈n_i / batch size⌉."""
        return self._epoch[client]

    def labels(self, client: ClientId) -> tuple[int, ...] | None:
        """Number of the client's samples of each class; None means unknown."""
        return self._labels.get(client)

    def share(self, client: ClientId) -> float:
        """p_i = n_i / Σ n over the clients present."""
        return self._samples[client] / self.total_samples

    def sample_idle(self, count: int, rng: np.random.Generator) -> list[ClientId]:
        """Draw up to `count` idle clients, uniformly without replacement; in order of their numbers."""
        idle, total = self._idle, len(self._idle)
        if count >= total:
            return sorted(idle)
        if count == 1:
            return [idle[below(total, rng)]]
        return sorted(idle[i] for i in rng.choice(total, count, replace=False))

    def fill(
        self, samples: Sequence[int], steps_per_epoch: Sequence[int], labels: Labels | None = None
    ) -> None:
        """Add clients 0 … n − 1 to an empty fleet. Raises `AlgorithmError` if it is not empty."""
        if len(self._samples):
            raise AlgorithmError("clients have joined already: the others can only join one by one")
        self._samples, self._epoch = array("q", samples), array("q", steps_per_epoch)
        self._place, self._idle = array("q", range(len(samples))), array("q", range(len(samples)))
        self._labels = {c: own for c, own in enumerate(labels or ()) if own is not None}
        self.size, self.total_samples = len(samples), sum(samples)

    def save(self) -> SavedFleet:
        """The state. What follows from it is not saved: places, the size and the sum of samples."""
        return SavedFleet(
            self._samples.tolist(), self._epoch.tolist(), self._idle.tolist(), dict(self._labels)
        )

    def restore(self, saved: SavedFleet) -> None:
        """Go on from a state. Raises `ValueError` for one that no fleet has."""
        present = {client for client, samples in enumerate(saved.samples) if samples >= 0}
        idle = set(saved.idle)
        if len(saved.samples) != len(saved.steps_per_epoch) or len(idle) < len(saved.idle) or idle - present:
            raise ValueError("a fleet is saved whose idle clients are not its own")
        self._samples, self._epoch = array("q", saved.samples), array("q", saved.steps_per_epoch)
        self._idle, self._place = array("q", saved.idle), array("q", [-1] * len(saved.samples))
        for place, client in enumerate(saved.idle):
            self._place[client] = place
        self._labels = dict(saved.labels)
        self.size, self.total_samples = len(present), sum(saved.samples[client] for client in present)

    def add(
        self, client: ClientId, samples: int, steps_per_epoch: int, labels: tuple[int, ...] | None = None
    ) -> None:
        """Add an idle client."""
        if client in self:
            raise AlgorithmError(f"client {client} joined twice")
        missing = client + 1 - len(self._samples)
        if missing > 0:
            for column, absent in ((self._samples, -1), (self._epoch, 0), (self._place, -1)):
                column.extend([absent] * missing)
        self._samples[client] = samples
        self._epoch[client] = steps_per_epoch
        # A client that comes back may have other data, of which it tells less.
        self._labels.pop(client, None)
        if labels is not None:
            self._labels[client] = labels
        self.size += 1
        self.total_samples += samples
        self.set_idle(client)

    def remove(self, client: ClientId) -> None:
        """Remove a client."""
        if client not in self:
            raise AlgorithmError(f"client {client} left without being present")
        if self._place[client] >= 0:
            self.set_busy(client)
        self.size -= 1
        self.total_samples -= self._samples[client]
        self._samples[client] = -1

    def set_idle(self, client: ClientId) -> None:
        """Make a client idle."""
        self._place[client] = len(self._idle)
        self._idle.append(client)

    def set_busy(self, client: ClientId) -> None:
        """Make a client busy: the last idle client takes its place in the list."""
        place = self._place[client]
        last = self._idle.pop()
        if last != client:
            self._idle[place] = last
            self._place[last] = place
        self._place[client] = -1
