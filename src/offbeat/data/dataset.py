"""Datasets: tensors, and the partition of train samples over clients.

A `Dataset` is two tensors. A `Source` is the result of a loader: train and test, and the natural group
(hospital, user) of each train sample where there is one. `FederatedData` adds the owner of each sample, in
compressed rows, so that 100,000 clients cost two integer vectors and not 100,000 objects.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.errors import UsageError

IndexLike = torch.Tensor | npt.NDArray[np.integer] | Sequence[int]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and their labels.

    Attributes:
        x: The samples, float32 [N, ...].
        y: The labels, int64 [N], values in [0, classes).
        classes: Number of classes.

    Raises:
        UsageError: A tensor has another dtype or shape, or a label is out of range.
    """

    x: torch.Tensor
    y: torch.Tensor
    classes: int

    def __post_init__(self) -> None:
        if self.x.dtype != torch.float32 or self.y.dtype != torch.int64:
            raise UsageError(
                f"dataset of x {self.x.dtype} and y {self.y.dtype}: x must be torch.float32 and y "
                "torch.int64; convert with .float() and .long()"
            )
        if self.x.dim() < 1 or self.y.dim() != 1 or len(self.x) != len(self.y):
            raise UsageError(
                f"dataset of x {tuple(self.x.shape)} and y {tuple(self.y.shape)}: y must have one dimension "
                "and as many entries as x has rows"
            )
        if len(self.y) and not 0 <= int(self.y.min()) <= int(self.y.max()) < self.classes:
            raise UsageError(
                f"labels {int(self.y.min())} to {int(self.y.max())} with classes {self.classes}: labels must "
                "be 0 to classes - 1; renumber the labels or raise classes"
            )

    def __len__(self) -> int:
        return len(self.y)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample, without the leading N."""
        return tuple(self.x.shape[1:])

    def subset(self, indices: IndexLike) -> "Dataset":
        """Copy the samples at `indices`, in that order.

        Args:
            indices: Integers [K] in [0, N), repeats allowed.

        Raises:
            UsageError: An index is out of range.
        """
        rows = _as_rows(indices)
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise UsageError(
                f"subset indices {int(rows.min())} to {int(rows.max())}: must be 0 to {len(self) - 1}; "
                f"the dataset has {len(self)} samples"
            )
        return Dataset(self.x[rows], self.y[rows], self.classes)


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
    train: Dataset
    test: Dataset
    groups: npt.NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class FederatedData:
    """A train set divided among clients, and the common test set. Build it with `federate`.

    Client i owns the train samples `indices[offsets[i]:offsets[i + 1]]`.

    Attributes:
        train: Train samples of all clients.
        test: Common test set.
        indices: Train-set indices by client, int64 [samples used].
        offsets: Start of each client's indices, and their end, int64 [clients + 1].
    """

    train: Dataset
    test: Dataset
    indices: torch.Tensor
    offsets: torch.Tensor

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.offsets.shape[0] - 1

    def samples(self, client: int) -> int:
        """Number of train samples of `client`. Raises `UsageError` for an unknown client."""
        return len(self.client_indices(client))

    def client_indices(self, client: int) -> torch.Tensor:
        """Train-set indices of `client`, int64 [samples(client)], a view. Raises as `samples`."""
        if not 0 <= client < self.clients:
            raise UsageError(
                f"client {client}: must be 0 to {self.clients - 1}; there are {self.clients} clients"
            )
        start, end = self.offsets[client : client + 2].tolist()
        return self.indices[start:end]

    def label_counts(self, client: int) -> list[int]:
        """Number of samples of each class of `client`, `classes` entries. Raises as `samples`."""
        labels = self.train.y[self.client_indices(client)]
        counts: list[int] = torch.bincount(labels, minlength=self.train.classes).tolist()
        return counts


def federate(
    train: Source | Dataset, test: Dataset | None, parts: Sequence[npt.NDArray[np.integer]]
) -> FederatedData:
    """Divide a train set among clients.

    Args:
        train: The train set, or a source with train and test set.
        test: The test set. None means that of the `Source`.
        parts: For each client the indices of its train samples, 1-D integers, at least one.

    Raises:
        UsageError: There is no client or no test set, a client has no sample, or an index is out of range or
            used twice.
    """
    if isinstance(train, Source):
        test = train.test if test is None else test
        train = train.train
    if test is None:
        raise UsageError(
            "test None: a test Dataset is needed when train is a Dataset; pass one, or pass a Source"
        )
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
    _check_used_once(indices, np.repeat(np.arange(len(parts)), sizes), len(train))
    offsets = np.cumsum(sizes)
    return FederatedData(train, test, _as_rows(indices), torch.from_numpy(np.insert(offsets, 0, 0)))


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


def _as_rows(indices: IndexLike) -> torch.Tensor:
    if isinstance(indices, torch.Tensor):
        return indices.to(torch.int64)
    # A copy: torch warns about arrays it may not write to.
    return torch.from_numpy(np.array(indices, dtype=np.int64))
