"""Client states between tasks (control variates, an earlier model): in memory up to a limit.

A client that has never finished a task costs nothing. Above the limit, the least recently used states go to
files, one a client, and are read from there when they are needed. A checkpoint writes those that have changed
and names a file for each, so a run is resumed without reading any of them.
"""

from collections import OrderedDict
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

from offbeat.core.errors import RunError, UsageError, reason_of
from offbeat.core.events import ClientId
from offbeat.core.layout import Layout
from offbeat.core.learner import own_tensors
from offbeat.core.model import Tensors
from offbeat.runs.durable_files import sync_directory
from offbeat.runs.files import read_tensors, write_tensors
from offbeat.runs.own_files import check_own_folder
from offbeat.runs.schema import MODEL

OWN = "clients"
"""Folder of a finished run with each client's own tensors, if they have any."""


def write_own(directory: Path, states: "ClientStates", layout: Layout) -> None:
    """Write each client's own tensors of the model, by name. Raises `RunError` where they cannot be."""
    folder = directory / OWN
    try:
        for client in states.sizes():
            if own := own_tensors(states.get(client), layout):
                check_own_folder(folder)
                folder.mkdir(mode=directory.stat().st_mode & 0o777, exist_ok=True)
                write_tensors(folder / f"client-{client}.safetensors", own)
        if folder.is_dir():
            sync_directory(folder)
    except OSError as error:
        raise RunError(f"cannot write the clients' tensors to {folder}: {reason_of(error)}") from None


def client_model(directory: Path, client: ClientId) -> Tensors:
    """A client's model at the end of a run, by tensor names: the final model with the client's own tensors.

    Args:
        directory: The run's directory.
        client: The client.

    Raises:
        UsageError: The run has not finished.
    """
    if not (directory / MODEL).is_file():
        raise UsageError(f"{directory} has no {MODEL}: let the run finish")
    own = directory / OWN / f"client-{client}.safetensors"
    return read_tensors(directory / MODEL) | (read_tensors(own) if own.is_file() else {})


def check_memory(limit: int | None, option: str = "client_memory") -> None:
    """Raises `UsageError` unless the option's `limit` is a number of bytes or None."""
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, Real) or not limit >= 0:
        raise UsageError(
            f"{option} = {limit!r} is not allowed: give a number of bytes from 0, or None for no limit"
        )


class ClientStates:
    """Store of the clients' states.

    Args:
        directory: Directory of the files. None means a temporary directory, deleted with this object.
        limit: Most bytes in memory. None means no limit.
    """

    def __init__(self, directory: Path | None = None, limit: int | None = None) -> None:
        self._directory, self._limit = directory, limit
        # The least recently used state comes first.
        self._memory: OrderedDict[ClientId, Tensors] = OrderedDict()
        # The file of a client's present state.
        self._files: dict[ClientId, str] = {}
        # The name that the file is to have, of states that were put with one.
        self._names: dict[ClientId, str] = {}
        self._sizes: dict[ClientId, int] = {}
        self._written = 0
        self.bytes_in_memory = 0
        # No checkpoint names files in a temporary directory, so old ones can be deleted at once.
        self._files_are_ours = directory is None

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of all states, in memory or not."""
        return sum(self._sizes.values())

    def get(self, client: ClientId) -> Tensors:
        """A client's state; empty before its first. Do not change its tensors in place."""
        if client in self._memory:
            self._memory.move_to_end(client)
        return self.peek(client)

    def peek(self, client: ClientId) -> Tensors:
        """A client's state, which does not count as used by this. Several threads may call it."""
        if client in self._memory:
            return dict(self._memory[client])
        return read_tensors(self._folder() / self._files[client]) if client in self._files else {}

    def put(self, client: ClientId, state: Tensors, name: str | None = None) -> None:
        """Store a client's new state.

        Args:
            client: The client.
            state: The state.
            name: Name of its file, if it gets one; a file of this name has this state already. None means
                the next number.
        """
        if not state and client not in self._sizes:
            return
        self.drop(client)
        if name is not None:
            self._names[client] = name
        self._sizes[client] = sum(tensor.nbytes for tensor in state.values())
        self._memory[client] = state
        self.bytes_in_memory += self._sizes[client]
        while self._limit is not None and self.bytes_in_memory > self._limit:
            oldest = next(iter(self._memory))
            self._write(oldest)
            self._forget(oldest)

    def drop(self, client: ClientId) -> None:
        """Forget a client's state."""
        self._forget(client)
        self._sizes.pop(client, None)
        self._names.pop(client, None)
        old = self._files.pop(client, None)
        if old is not None and self._files_are_ours:
            (self._folder() / old).unlink()

    def save(self) -> dict[ClientId, str]:
        """Write the states that no file has; returns the name of each client's file."""
        for client in self._memory:
            self._write(client)
        return dict(self._files)

    def restore(self, files: Mapping[ClientId, str], sizes: Mapping[ClientId, int]) -> None:
        """Restore the saved states from the names of `save` and their sizes in bytes."""
        self._files, self._sizes = dict(files), dict(sizes)
        numbers = (int(Path(name).stem.rpartition("-")[2]) for name in files.values())
        self._written = 1 + max(numbers, default=-1)

    def sizes(self) -> dict[ClientId, int]:
        """Bytes of each client's state."""
        return dict(self._sizes)

    def _forget(self, client: ClientId) -> None:
        if client in self._memory:
            del self._memory[client]
            self.bytes_in_memory -= self._sizes[client]

    def _write(self, client: ClientId) -> None:
        if client in self._files:
            return
        given = self._names.get(client)
        name = given or f"client-{self._written}.safetensors"
        self._written += given is None
        try:
            if given is None or not (self._folder() / name).exists():
                write_tensors(self._folder() / name, self._memory[client])
        except OSError as error:
            raise RunError(f"cannot write a client's state to {self._folder()}: {reason_of(error)}") from None
        self._files[client] = name

    def _folder(self) -> Path:
        if self._directory is None:
            self._directory = Path(mkdtemp(prefix="offbeat-clients-"))
            finalize(self, rmtree, self._directory, ignore_errors=True)
        return self._directory
