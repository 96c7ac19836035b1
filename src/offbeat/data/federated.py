"""Loaded datasets, and the partition of train samples over clients.

A `Source` is the result of a loader: train and test, and the natural group (hospital, user) of each train
sample where there is one. `FederatedData` adds the owner of each sample, in compressed rows, so that 100,000
clients cost two integer vectors and not 100,000 objects.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.errors import UsageError
from offbeat.data.dataset import Dataset, MapDataset, Samples, as_samples, concatenated, label_counts
from offbeat.data.subsample import fixed_permutation

_HELD_OUT = 3  # the stream of shuffles that validation shares are cut from


@dataclass(frozen=True, eq=False)
class Source:
    """A loaded dataset before it is divided among clients.

    Attributes:
        name: Name of the dataset.
        train: Train samples.
        test: Test samples.
        groups: Natural group of each train sample, int64 [len(train)]. None means that there are no groups.
        group_names: Name of group g at place g.
    """

    name: str
    train: Dataset | MapDataset
    test: Dataset | MapDataset
    groups: npt.NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples by client: client i has those at `indices[offsets[i]:offsets[i + 1]]`.

    Attributes:
        indices: Indices by client, int64 [samples].
        offsets: Start of each client's indices, and their end, int64 [clients + 1].
    """

    indices: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of(cls, parts: Sequence[npt.NDArray[np.integer]]) -> "Rows":
        """Compress one array of indices per client."""
        sizes = [len(part) for part in parts]
        joined = np.concatenate(parts) if len(parts) else np.zeros(0)
        offsets = np.concatenate([np.zeros(1), np.cumsum(sizes)])
        return cls(torch.from_numpy(joined.astype(np.int64)), torch.from_numpy(offsets.astype(np.int64)))

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.offsets.shape[0] - 1

    def count(self, client: int) -> int:
        """Number of samples of `client`. Raises `UsageError` for an unknown client."""
        start, end = self._bounds(client)
        return end - start

    def client(self, client: int) -> torch.Tensor:
        """Indices of `client`, int64 [count(client)], a view. Raises as `count`."""
        start, end = self._bounds(client)
        return self.indices[start:end]

    def numbered(self, client: int) -> "Rows":
        """The rows of the only client, as those of client `client`; clients below it have none."""
        return Rows(self.indices, torch.cat([self.offsets[:1].expand(client + 1), self.offsets[1:]]))

    def _bounds(self, client: int) -> tuple[int, int]:
        clients = self.clients
        if not 0 <= client < clients:
            raise UsageError(f"client {client}: must be 0 to {clients - 1}; there are {clients} clients")
        start, end = self.offsets[client : client + 2].tolist()
        return start, end


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Samples divided among clients, and the common test set. Build it with `federate`.

    Attributes:
        train: Samples of all clients.
        test: Common test set. None means that there is none.
        rows: The samples that each client trains on.
        held_out: The samples that each client evaluates on, none of which it trains on. None means that no
            client holds out any.
        starts: Of one dataset per client, where each begins in `train`. None means one train set for all.
        root: Trusted samples of the server's own, on which it trains. None means that there are none.
    """

    train: Samples
    test: Samples | None
    rows: Rows
    held_out: Rows | None = None
    starts: tuple[int, ...] | None = None
    root: Samples | None = None

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.rows.clients

    def samples(self, client: int) -> int:
        """Number of train samples of `client`. Raises `UsageError` for an unknown client."""
        return self.rows.count(client)

    def client_indices(self, client: int) -> torch.Tensor:
        """Indices of the train samples of `client`, int64 [samples(client)], a view. Raises as `samples`."""
        return self.rows.client(client)

    def name_of(self, client: int, row: int) -> str:
        """A train sample in words: by its number in the client's own dataset, if each has one."""
        if self.starts is None:
            return f"sample {row} of the train set"
        return f"sample {row - self.starts[client]} of the client's dataset"

    def label_counts(self, client: int) -> list[int] | None:
        """Number of train samples of each class of `client`, `classes` entries; None without classes.

        Raises as `samples`.
        """
        return label_counts(self.train, self.client_indices(client))

    def numbered(self, client: int) -> "FederatedData":
        """The same data, whose only client has another number; those below it have no samples.

        Raises `UsageError` where there are several clients.
        """
        if self.clients != 1:
            raise UsageError(f"the data are those of {self.clients} clients: a site has its own alone")
        held = None if self.held_out is None else self.held_out.numbered(client)
        return replace(self, rows=self.rows.numbered(client), held_out=held, starts=None)


def own_data(data: Any, validation: float = 0.0) -> FederatedData:
    """The data of one site, as one client.

    Args:
        data: Whatever `as_samples` takes; a pair of these, to train and to evaluate on (a pair of tensors or
            arrays is x and y); or the `FederatedData` of one client.
        validation: Share of the samples in [0, 1) that is held out, as `federate` does it; 0 with a pair.

    Raises:
        UsageError: It is none of these, or has no samples.
    """
    match data:
        case FederatedData():
            own = data
        case (train, held) if not isinstance(train, torch.Tensor | np.ndarray) and isinstance(data, tuple):
            own = federate([train], validation=[held])
        case _:
            own = federate([data])
    if not validation:
        return own
    if own.held_out is not None:
        raise UsageError(
            f"validation = {validation:g} is not allowed: the data hold out samples already; leave it out"
        )
    kept, held_out = _held_out([own.client_indices(c).numpy() for c in range(own.clients)], validation)
    return replace(own, rows=Rows.of(kept), held_out=held_out)


def without_clients(test: Any = None, root: Any = None) -> FederatedData:
    """The data of a server, which has no clients': test set and root data, as `as_samples` takes, or none."""
    none = Dataset(torch.zeros(0))
    tested, trusted = (None if own is None else as_samples(own) for own in (test, root))
    return FederatedData(none, tested, Rows.of([]), root=trusted)


def federate(
    train: Any,
    test: Any = None,
    parts: Sequence[npt.NDArray[np.integer]] | None = None,
    *,
    validation: float | Sequence[Any] = 0.0,
    root: Any = None,
) -> FederatedData:
    """Divide samples among clients.

    Args:
        train: The train set: a `Source`, or whatever `as_samples` takes (tensors, arrays, a map-style
            dataset); without `parts` a sequence of these, one per client.
        test: The common test set. None means that of the `Source`, or that there is none.
        parts: For each client the indices of its train samples, 1-D integers, at least one.
        validation: What each client evaluates on: a share of its samples in [0, 1), drawn without a seed, at
            least one sample where it has two; or one dataset per client, besides its train samples.
        root: Trusted samples of the server's own, whatever `as_samples` takes. None means none.

    Raises:
        UsageError: There is no client, a client has no sample, an index is out of range or used twice, or the
            datasets cannot be put together.
    """
    if isinstance(train, Source):
        train, test = train.train, train.test if test is None else test
    starts = None
    if parts is None:
        sets = _one_per_client(train)
        ends = np.cumsum([len(samples) for samples in sets])
        whole, parts = concatenated(sets), np.split(np.arange(ends[-1]), ends[:-1])
        starts = tuple(int(part[0]) for part in parts)
    else:
        whole = as_samples(train)
    _check_parts(parts, len(whole))
    tested, trusted = (None if own is None else as_samples(own) for own in (test, root))
    if isinstance(validation, int | float):
        kept, held = _held_out(parts, validation)
        return FederatedData(whole, tested, Rows.of(kept), held, starts, trusted)
    if len(validation) != len(parts):
        raise UsageError(
            f"validation: {len(validation)} datasets for {len(parts)} clients; give one for each"
        )
    own = [as_samples(samples) for samples in validation]
    ends = len(whole) + np.cumsum([len(samples) for samples in own])
    held_parts = np.split(np.arange(len(whole), ends[-1]), ends[:-1] - len(whole))
    every = concatenated([whole, *own])
    return FederatedData(every, tested, Rows.of(parts), Rows.of(held_parts), starts, trusted)


def _one_per_client(train: Any) -> list[Samples]:
    """The datasets of a sequence that has one per client."""
    if not isinstance(train, list | tuple):
        raise UsageError(
            f"a {type(train).__name__} without parts: give one array of sample indices per client as parts, "
            "or a list with one dataset per client"
        )
    if not train:
        raise UsageError("no datasets: at least one client is needed; give one dataset per client")
    sets = [as_samples(samples) for samples in train]
    for client, samples in enumerate(sets):
        if not len(samples):
            raise UsageError(f"client {client}: its dataset has no samples; leave the client out")
    return sets


def _check_parts(parts: Sequence[npt.NDArray[np.integer]], available: int) -> None:
    if not len(parts):
        raise UsageError(
            "parts []: at least one client is needed; pass one array of sample indices per client"
        )
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    if not sizes.all():
        raise UsageError(
            f"empty partition: client {int(np.argmin(sizes))} of {len(parts)} got no samples; use "
            "fewer clients, more samples or a partition with a minimum size"
        )
    indices = np.concatenate(parts)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise UsageError(
            f"parts of {indices.dtype} with {indices.ndim} dimensions: must be 1-D arrays of integers, "
            "one per client"
        )
    _check_used_once(indices, np.repeat(np.arange(len(parts)), sizes), available)


def _check_used_once(indices: npt.NDArray[np.integer], owner: npt.NDArray[np.int64], available: int) -> None:
    wrong = (indices < 0) | (indices >= available)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise UsageError(
            f"sample index {int(indices[at])} of client {int(owner[at])}: must be 0 to {available - 1}; "
            f"the train set has {available} samples"
        )
    uses = np.bincount(indices, minlength=available)
    if uses.max(initial=0) > 1:
        sample = int(np.argmax(uses))
        owners = owner[indices == sample]
        raise UsageError(
            f"sample index {sample} is used {int(uses[sample])} times, by clients {int(owners[0])} and "
            f"{int(owners[1])}: every sample belongs to at most one client; remove the repeats from parts"
        )


def _held_out(
    parts: Sequence[npt.NDArray[np.integer]], share: float
) -> tuple[Sequence[npt.NDArray[np.integer]], Rows | None]:
    """Cut a share of each client's samples off; a client with one sample trains on it."""
    if not 0 <= share < 1:
        raise UsageError(
            f"validation = {share} is not allowed: give a share in [0, 1), or a dataset per client"
        )
    if not share:
        return parts, None
    kept, held = [], []
    for part in parts:  # whatever the client's number: a site has the same samples held out in every run
        count = min(len(part) - 1, max(1, round(share * len(part))))
        drawn = np.zeros(len(part), dtype=bool)
        drawn[fixed_permutation(len(part), 0, _HELD_OUT)[:count]] = True
        kept.append(np.asarray(part)[~drawn])
        held.append(np.asarray(part)[drawn])
    return kept, Rows.of(held)
