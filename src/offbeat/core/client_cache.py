"""The server's cache of each client's last update, for aggregators that use it again.

What one aggregation puts or drops is pending until it is committed: one that the guard skips leaves each
entry as it was. The vectors are in a store, which a driver with a directory bounds and keeps in files.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec
from torch import Tensor

from offbeat.core.events import ClientId, TaskId, Version
from offbeat.core.schedule import Task


class CacheEntry(msgspec.Struct, frozen=True):
    """What is known of a client's vector, beside the vector.

    Attributes:
        task: The task whose update it is.
        base: Version from which the task started.
        rate: Divisor of the vector in sums, such as the learning rate of its training.
    """

    task: TaskId
    base: Version
    rate: float = 1.0


class Vectors(Protocol):
    """Store of one vector a client."""

    @property
    def nbytes(self) -> int:
        """Bytes of all vectors, in memory or not."""

    def get(self, client: ClientId) -> Tensor:
        """The vector of a client that has one."""

    def put(self, client: ClientId, task: TaskId, vector: Tensor) -> None:
        """Store a task's vector in place of the client's last one."""

    def drop(self, client: ClientId) -> None:
        """Forget the vector of a client that has one."""

    def peek(self, client: ClientId) -> Tensor:
        """As `get`, for several threads, which do not change what is kept in memory."""

    def restore(
        self, tasks: Mapping[ClientId, TaskId], nbytes: int, read: Callable[[TaskId], Tensor]
    ) -> None:
        """Restore the vectors of a checkpoint.

        Args:
            tasks: The task of each client's vector.
            nbytes: Bytes of a vector.
            read: Reads a task's vector from the checkpoint.
        """


class VectorsInMemory:
    """Store without a limit."""

    def __init__(self) -> None:
        self._vectors: dict[ClientId, Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all vectors."""
        return sum(vector.nbytes for vector in self._vectors.values())

    def get(self, client: ClientId) -> Tensor:
        """The vector of a client."""
        return self._vectors[client]

    def put(self, client: ClientId, task: TaskId, vector: Tensor) -> None:
        """Store a vector in place of the client's last one."""
        self._vectors[client] = vector

    def drop(self, client: ClientId) -> None:
        """Forget the vector of a client."""
        del self._vectors[client]

    peek = get

    def restore(
        self, tasks: Mapping[ClientId, TaskId], nbytes: int, read: Callable[[TaskId], Tensor]
    ) -> None:
        """Read the vectors of a checkpoint."""
        self._vectors = {client: read(task) for client, task in tasks.items()}


class ClientCache:
    """Last update of each client: a float32 vector [values] on the CPU, and its `CacheEntry`.

    Args:
        vectors: The store of the vectors.
    """

    def __init__(self, vectors: Vectors | None = None) -> None:
        self._vectors: Vectors = vectors or VectorsInMemory()
        self._entries: dict[ClientId, CacheEntry] = {}
        # What the aggregation at hand has put; None stands for an entry that it has dropped.
        self._pending: dict[ClientId, tuple[CacheEntry, Tensor] | None] = {}

    def __len__(self) -> int:
        return len(self.entries()) if self._pending else len(self._entries)

    def __contains__(self, client: object) -> bool:
        if client in self._pending:
            return self._pending[client] is not None
        return client in self._entries

    @property
    def nbytes(self) -> int:
        """Bytes of all vectors, in memory or not."""
        return self._vectors.nbytes

    def keep_in(self, vectors: Vectors) -> None:
        """Use another store from here on, before there is any entry."""
        assert not self._entries
        self._vectors = vectors

    def entries(self) -> dict[ClientId, CacheEntry]:
        """The entries, by client in order of their numbers."""
        put = {client: found[0] for client, found in self._pending.items() if found is not None}
        kept = {client: e for client, e in self._entries.items() if client not in self._pending}
        return dict(sorted((kept | put).items()))

    def get(self, client: ClientId) -> tuple[CacheEntry, Tensor] | None:
        """A client's entry and vector; None where it has none. Never write to the vector."""
        if client in self._pending:
            return self._pending[client]
        return (self._entries[client], self._vectors.get(client)) if client in self._entries else None

    def peek(self, client: ClientId) -> Tensor:
        """The vector of an entry between two aggregations. Several threads may call it."""
        return self._vectors.peek(client)

    def put(self, task: Task, vector: Tensor, rate: float = 1.0) -> None:
        """Keep a client's vector in place of its last one.

        Args:
            task: The client's task.
            vector: float32 [values]; kept as it is, so nobody may write to it any more.
            rate: As of `CacheEntry`.
        """
        vector = vector.cpu()
        if vector.untyped_storage().nbytes() > vector.nbytes:
            # A view would hold all of the memory that it is a part of.
            vector = vector.clone()
        self._pending[task.client] = CacheEntry(task.id, task.base, rate), vector

    def drop(self, clients: Iterable[ClientId]) -> None:
        """Forget the entries of clients, as far as they have one."""
        self._pending.update(dict.fromkeys(client for client in clients if client in self))

    def commit(self) -> None:
        """Make what was put and dropped permanent."""
        for client, found in self._pending.items():
            if found is not None:
                self._entries[client] = found[0]
                self._vectors.put(client, found[0].task, found[1])
            elif self._entries.pop(client, None) is not None:
                self._vectors.drop(client)
        self._pending.clear()

    def revert(self) -> None:
        """Forget what was put and dropped since the last `commit`."""
        self._pending.clear()

    def clear(self) -> None:
        """Drop every entry, at once."""
        self.revert()
        self.drop(self._entries)
        self.commit()

    def restore(
        self, entries: Mapping[ClientId, CacheEntry], nbytes: int, read: Callable[[TaskId], Tensor]
    ) -> None:
        """Restore the entries of a checkpoint.

        Args:
            entries: As `entries` gave them.
            nbytes: Bytes of a vector.
            read: Reads a task's vector from the checkpoint.
        """
        self._entries = dict(entries)
        self._vectors.restore({client: entry.task for client, entry in entries.items()}, nbytes, read)
