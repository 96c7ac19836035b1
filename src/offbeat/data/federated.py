"""Loaded datasets, and the partition of train samples over clients.

A `Source` is the result of a loader: train and test, and the natural group (hospital, user) of each train
sample where there is one. `FederatedData` adds the owner of each sample, in compressed rows, so that 100,000
clients cost two integer vectors and not 100,000 objects.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.errors import UsageError
from offbeat.data.column_order import in_one_order
from offbeat.data.columns import Columns, index_of
from offbeat.data.convert import Sets, as_samples, as_sets, as_train_and_other
from offbeat.data.dataset import (
    Dataset,
    MapDataset,
    Samples,
    concatenated,
    label_counts,
)
from offbeat.data.parts import check_parts, occupied, parts_of
from offbeat.data.subsample import fixed_permutation

_DIGESTED = 64  # samples
# Validation shares are cut from this stream of shuffles.
_HELD_OUT = 3


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
    groups: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    group_names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Samples by client: client i has those at `indices[offsets[i]:offsets[i + 1]]`.

    Attributes:
        indices: Indices by client, int64 [samples].
        offsets: Start of each client's indices, and their end, int64 [clients + 1].
    """

    indices: torch.Tensor
    offsets: torch.Tensor

    def __repr__(self) -> str:
        """The rows in a line, without the indices."""
        return f"<Rows: {len(self.indices)} samples of {self.clients} clients>"

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
        test: Common test set. None means no test set.
        rows: The samples that each client trains on.
        held_out: The samples on which each client evaluates and does not train. None means that no client
            holds out samples.
        starts: With one dataset per client, the position in `train` at which each begins. None means one
            train set for all.
        root: Trusted samples of the server, on which it trains. None means no such samples.
        names: The clients' names, which reports show; empty if the clients have numbers only.
        columns: Names of the columns of tables, "x", "y" or an input, in their order. Those that are not
            given are of the first set that has names, of train, test and root.

    Raises:
        UsageError: A set has other columns.
    """

    train: Samples
    test: Samples | None
    rows: Rows
    held_out: Rows | None = None
    starts: tuple[int, ...] | None = None
    root: Samples | None = None
    names: tuple[str, ...] = ()
    columns: Columns = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Put the columns of all sets in one order."""
        found = {"train": self.train, "test": self.test, "root": self.root}
        sets = {name: samples for name, samples in found.items() if samples is not None}
        told = {f"the {name} set": samples for name, samples in sets.items()}
        ordered = in_one_order(told, self.columns)
        columns: dict[str, tuple[str, ...]] = {}
        for name, samples in zip(sets, ordered, strict=True):
            object.__setattr__(self, name, samples)
            columns = {**getattr(samples, "columns", {}), **columns}
        object.__setattr__(self, "columns", {**columns, **self.columns})

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
        """A sample of a client in words: by its number in the client's own dataset, if each has one."""
        if self.held_out is not None and len(at := (self.held_out.client(client) == row).nonzero()):
            return f"sample {int(at[0])} of those that the client holds out"
        if self.starts is None:
            return f"sample {row} of the train set"
        return f"sample {row - self.starts[client]} of the client's dataset"

    def label_counts(self, client: int) -> list[int] | None:
        """Number of train samples of each class of `client`, `classes` entries; None without classes.

        Raises as `samples`.
        """
        return label_counts(self.train, self.client_indices(client))

    def describe(self) -> dict[str, Any]:
        """The entry of a run's record about the data. Other data have another one.

        Returns:
            `digest` of who has which samples, and of the integers of up to 64 samples that lie in memory;
            `sizes` of their real numbers x, the means of |x| and |x − 1| to three digits: the last bits of
            these may be others on another processor. Samples of files are not read: what a loader makes of
            them may be random.
        """
        digest, sizes = sha256(), list[str]()
        for rows in (self.rows, self.held_out):
            if rows is not None:
                digest.update(rows.offsets.numpy().tobytes())
                digest.update(rows.indices.numpy().tobytes())
        if isinstance(self.train, Dataset) and len(self.train):
            some = torch.arange(0, len(self.train), -(-len(self.train) // _DIGESTED))
            for tensor in _tensors(self.train.gather(some)):
                if tensor.is_floating_point():
                    x = tensor.detach().double().contiguous()
                    sizes += [f"{float(x.abs().mean()):.3g}", f"{float((x - 1).abs().mean()):.3g}"]
                else:
                    digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return {"digest": digest.hexdigest()[:16], "sizes": sizes}

    def with_columns(self, columns: Columns) -> "FederatedData":
        """The same data with the columns of their tables in another order, by their names.

        Raises `UsageError` where a set has other columns.
        """
        same = all(self.columns.get(name) == names for name, names in columns.items())
        return self if same else replace(self, columns={**self.columns, **columns})

    def numbered(self, client: int) -> "FederatedData":
        """The same data, whose only client has another number; those below it have no samples.

        Raises `UsageError` where there are several clients.
        """
        if self.clients != 1:
            raise UsageError(f"the data are those of {self.clients} clients: a site has its own alone")
        held = None if self.held_out is None else self.held_out.numbered(client)
        return replace(self, rows=self.rows.numbered(client), held_out=held, starts=None, names=())


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch, in a fixed order."""
    if isinstance(batch, torch.Tensor):
        yield batch
    else:
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(part)


def own_data(data: Any, validation: float = 0.0, label: str | None = None) -> FederatedData:
    """The data of one site, as one client.

    Args:
        data: Data in any form that `as_samples` takes; a pair of these, to train and to evaluate on (a pair
            of columns is x and y); the splits "train" and, if there is one, "validation" of Hugging Face; or
            the `FederatedData` of one client.
        validation: Share of the samples in [0, 1) that is held out, as in `federate`; 0 with a pair.
        label: The column of the targets, of a frame or a dataset of Hugging Face.

    Raises:
        UsageError: The data are none of these, or have no samples.
    """
    if isinstance(data, FederatedData):
        federated = data
    else:
        train, held = as_train_and_other(data, "validation", label)
        federated = _divided(Sets([train], 0.0 if held is None else [held]))
    if not validation:
        return federated
    if federated.held_out is not None:
        raise UsageError(
            f"validation = {validation:g} is not allowed: the data hold out samples already; leave it out"
        )
    kept, held_out = _held_out(
        [federated.client_indices(c).numpy() for c in range(federated.clients)], validation
    )
    return replace(federated, rows=Rows.of(kept), held_out=held_out)


def without_clients(
    test: Any = None, root: Any = None, columns: Sequence[str] | None = None
) -> FederatedData:
    """The data of a server, which has no clients'.

    Args:
        test: Test set, as `as_samples` takes it. None means no test set.
        root: Samples on which the server trains, in the same forms. None means no such samples.
        columns: Names of the columns of x, in the order of the model's inputs, to which each site puts its
            own. None means those of the test set, if it is a table.

    Raises:
        UsageError: A set has other columns.
    """
    none = Dataset(torch.zeros(0))
    tested, trusted = (None if own is None else as_samples(own) for own in (test, root))
    named = {} if columns is None else {"x": tuple(columns)}
    return FederatedData(none, tested, Rows.of([]), root=trusted, columns=named)


def federate(
    train: Any,
    test: Any = None,
    parts: Any = None,
    *,
    validation: float | Sequence[Any] | Mapping[Any, Any] = 0.0,
    root: Any = None,
    label: str | None = None,
    drop_empty: bool = False,
) -> FederatedData:
    """Divide samples among clients.

    Args:
        train: The train set: a `Source`, or whatever `as_samples` takes (tensors, arrays, lists, pandas
            frames, a map-style dataset); the splits "train" and "test" of Hugging Face. Without `parts`, it
            is a list of these, one per client, or a mapping from the clients' names to these, in the
            mapping's order, or LEAF's JSON, whose users are the clients. Reports show these names.
        test: The common test set. None means that of the `Source` or of the splits, if there is one.
        parts: For each client the indices of its train samples: 1-D integers or a set, at least one; a
            sequence of these, or a mapping from the clients' names to these, in its order, such as pandas's
            `frame.groupby(column).indices`.
        validation: The samples on which each client evaluates. A number is the share of its samples in [0,
            1), drawn without a seed, and at least one sample if the client has two. A list has one dataset
            per client, in addition to its train samples.
        root: Trusted samples of the server, in any form that `as_samples` takes. None means no such samples.
        label: The column of the targets, of pandas frames or datasets of Hugging Face.
        drop_empty: Whether clients without samples are left out. The log reports it, and the remaining
            clients are numbered anew, in their order.

    Raises:
        UsageError: There is no client, a client has no sample, an index is out of range or used twice, or the
            datasets cannot be put together.
    """
    if isinstance(train, Source):
        train, test = train.train, train.test if test is None else test
    sets = as_sets(train, test, parts, validation, root, label)
    return _divided(sets, () if parts is None else parts_of(parts, index_of(train)), drop_empty)


def _divided(sets: Sets, parts: Sequence[npt.NDArray[Any]] = (), drop_empty: bool = False) -> FederatedData:
    """Divide samples among clients: by `parts`, or with a train set for each client."""
    clients = parts if isinstance(sets.train, Samples) else sets.train
    kept = occupied([len(client) for client in clients], drop_empty)
    starts = None
    if not isinstance(sets.train, Samples):
        own = in_one_order(_called("{}", sets.train, kept, sets.names))
        ends = np.cumsum([len(samples) for samples in own])
        whole, rows = concatenated(own), np.split(np.arange(ends[-1]), ends[:-1])
        starts = tuple(int(part[0]) for part in rows)
    else:
        whole, rows = sets.train, [parts[client] for client in kept]
    check_parts(rows, len(whole))
    names = () if sets.names is None else tuple(str(sets.names[client]) for client in kept)
    if not isinstance(sets.validation, list):
        remain, held = _held_out(rows, sets.validation)
        return FederatedData(whole, sets.test, Rows.of(remain), held, starts, sets.root, names)
    if (given := len(sets.validation)) != len(clients):
        raise UsageError(f"validation: {given} datasets for {len(clients)} clients; give one for each")
    called = _called("validation of {}", sets.validation, kept, sets.names)
    whole, *held_sets = in_one_order({"the train set": whole, **called})
    ends = len(whole) + np.cumsum([len(samples) for samples in held_sets])
    held_parts = np.split(np.arange(len(whole), ends[-1]), ends[:-1] - len(whole))
    every = concatenated([whole, *held_sets])
    return FederatedData(every, sets.test, Rows.of(rows), Rows.of(held_parts), starts, sets.root, names)


def _called(
    text: str, sets: Sequence[Samples], kept: Sequence[int], names: Sequence[Any] | None
) -> dict[str, Samples]:
    """The sets of some clients, by what they are called in messages."""
    return {text.format(f"client {n if names is None else repr(names[n])}"): sets[n] for n in kept}


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
    for part in parts:
        # The key of the shuffle has no client number, so a site holds out the same samples in every run.
        count = min(len(part) - 1, max(1, round(share * len(part))))
        drawn = np.zeros(len(part), dtype=bool)
        drawn[fixed_permutation(len(part), 0, _HELD_OUT)[:count]] = True
        kept.append(np.asarray(part)[~drawn])
        held.append(np.asarray(part)[drawn])
    return kept, Rows.of(held)
