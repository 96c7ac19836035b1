"""Vectors of a server's cache of its clients' last updates: in memory up to a limit, the rest in files.

A file is named for its task, and never changes: a checkpoint writes the entries that are new since the last
one, and names the others again.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId, TaskId
from offbeat.core.layout import Layout
from offbeat.runs.client_states import ClientStates
from offbeat.runs.files import read_tensors
from offbeat.runs.schema import cached_file

VECTOR = "vector"
"""Name of the tensor in a file."""


class CachedVectors:
    """Store of `core.client_cache.ClientCache`: the least recently used vectors go to files.

    Args:
        directory: The run's directory. None means a temporary one, deleted with this object.
        limit: Most bytes in memory; 0 means that every vector goes to its file at once. None means no limit.
    """

    def __init__(self, directory: Path | None = None, limit: int | None = None) -> None:
        self._states = ClientStates(directory, limit)

    @property
    def nbytes(self) -> int:
        """Bytes of all vectors, in memory or not."""
        return self._states.nbytes

    @property
    def bytes_in_memory(self) -> int:
        """Bytes of the vectors in memory."""
        return self._states.bytes_in_memory

    def get(self, client: ClientId) -> Tensor:
        """The vector of a client that has one."""
        return self._states.get(client)[VECTOR]

    def peek(self, client: ClientId) -> Tensor:
        """The same, which does not count as used by this. Several threads may call it."""
        return self._states.peek(client)[VECTOR]

    def put(self, client: ClientId, task: TaskId, vector: Tensor) -> None:
        """Store a task's vector in place of the client's last one."""
        self._states.put(client, {VECTOR: vector}, cached_file(task))

    def drop(self, client: ClientId) -> None:
        """Forget the vector of a client."""
        self._states.drop(client)

    def restore(
        self, tasks: Mapping[ClientId, TaskId], nbytes: int, read: Callable[[TaskId], Tensor]
    ) -> None:
        """Restore the vectors of a checkpoint of this directory, which are read when they are needed."""
        files = {client: cached_file(task) for client, task in tasks.items()}
        self._states.restore(files, dict.fromkeys(files, nbytes))


def read_vector(directory: Path, task: TaskId) -> Tensor:
    """Read a vector of a checkpoint. Raises `DamageError` where its file is missing or damaged."""
    return read_tensors(directory / cached_file(task))[VECTOR]


def check_cache_memory(limit: int | None, algorithm: Algorithm, layout: Layout) -> None:
    """Raises `UsageError` where an algorithm keeps each client's last update, and the limit holds not one."""
    entry = 4 * layout.values
    if algorithm.aggregator.caches and limit is not None and 0 < limit < entry:
        raise UsageError(
            f"cache_memory = {limit} is not allowed with {algorithm.name}: one client's last update has "
            f"{entry} bytes; give at least as many, or 0 to keep each in a file"
        )
