"""Partitions of the train samples over the clients.

Every partition is a frozen, checked set of options with one method,

    split(labels, clients, rng, groups=None) -> list of `clients` sorted int64 arrays of sample indices

where `labels` is int64 [N], `rng` is the only source of randomness (the same state gives the same partition)
and `groups` is int64 [N], the natural group of each sample. Every sample is used at most once. All raise
`UsageError` for labels that are not one row of integers, for fewer than one client, and where no partition of
that kind exists for that number of clients and samples.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, model_validator

from offbeat.core.errors import UsageError
from offbeat.core.types import Count, Indices, NonNegative, Positive, Whole
from offbeat.core.validation import checked_dataclass
from offbeat.world.partition_file import FromFile

__all__ = [
    "ClassPartition",
    "DualDirichlet",
    "FromFile",
    "Iid",
    "LabelDirichlet",
    "Natural",
    "Partition",
    "Shards",
    "describe",
]

if TYPE_CHECKING:
    from offbeat.data import FederatedData

# A minimum size is given up after this number of partitions.
_DRAWS = 1000
# Covering every class is given up after this number of assignments of classes.
_COVER_DRAWS = 100_000

_DROP_EMPTY = (
    "; or leave empty clients out, by min_size = 0 and drop_empty = True (in a recipe data.drop_empty)"
)

MinSize = Annotated[
    Whole,
    Field(ge=0, description="fewest samples of a client; the draw repeats until met; 0 allows none"),
]


@checked_dataclass
class Iid:
    """IID partition: equal random shares of all samples; client sizes differ by at most one."""

    kind: Literal["iid"] = "iid"

    def split(
        self, labels: Indices, clients: int, rng: np.random.Generator, groups: Indices | None = None
    ) -> list[Indices]:
        """See the module's docstring. Raises `UsageError` for more clients than samples."""
        _check(labels, clients, self.kind)
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


@checked_dataclass
class Shards:
    """Shard partition: samples sorted by label and cut into equal shards. McMahan et al. (2017), section 3.

    Every sample is used; shard sizes differ by at most one.

    Attributes:
        shards_per_client: Number of random shards that each client gets.
    """

    kind: Literal["shards"] = "shards"
    shards_per_client: Annotated[Count, Field(description="shards each client gets")] = 2

    def split(
        self, labels: Indices, clients: int, rng: np.random.Generator, groups: Indices | None = None
    ) -> list[Indices]:
        """See the module's docstring. Raises `UsageError` for more shards than samples."""
        _check(labels, clients, self.kind)
        shards = clients * self.shards_per_client
        if shards > len(labels):
            raise UsageError(
                f"shards_per_client {self.shards_per_client}: {clients} clients need {shards} shards, more "
                f"than the {len(labels)} samples; use fewer clients, fewer shards or more samples"
            )
        shuffled = rng.permutation(len(labels))
        pieces = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], shards)
        owned = rng.permutation(shards).reshape(clients, self.shards_per_client)
        return [np.sort(np.concatenate([pieces[shard] for shard in mine])) for mine in owned]


class _DrawnByClass(ABC):
    """A partition that draws how many samples of each class a client gets, until each client has enough."""

    kind: str
    min_size: int
    # Added to the error after too many draws.
    advice: ClassVar[str]

    def split(
        self, labels: Indices, clients: int, rng: np.random.Generator, groups: Indices | None = None
    ) -> list[Indices]:
        """See the module's docstring."""
        _check(labels, clients, self.kind, self.min_size, _DROP_EMPTY)
        sizes = np.unique(labels, return_counts=True)[1].astype(np.int64)
        # Only counts are drawn again, never indices, so a thousand failures stay cheap.
        for _ in range(_DRAWS):
            counts = self._counts(sizes, clients, rng)
            own = counts.sum(axis=1)
            if own.min() >= self.min_size:
                return _deal(labels, counts, rng)
        poorest = int(np.argmin(own))
        state = "empty" if own[poorest] == 0 else f"with {own[poorest]} samples"
        raise UsageError(
            f"partition {self.kind!r} left client {poorest} of {clients} {state} (min_size {self.min_size}, "
            f"{_DRAWS} draws): use fewer clients, more samples, a smaller min_size or {self.advice}"
            f"{_DROP_EMPTY}"
        )

    @abstractmethod
    def _counts(self, sizes: Indices, clients: int, rng: np.random.Generator) -> Indices:
        """Draw the counts [clients, classes]; `sizes` are those of the classes, in the labels' order."""


@checked_dataclass
class ClassPartition(_DrawnByClass):
    """Class partition: few classes per client, in normally distributed amounts. FedCompass, Algorithm 4.

    Each client takes between `min_classes` and `max_classes` classes (both included), drawn again until every
    class has a client. Each class goes to its clients in proportion to draws of normal(`mean`, `std`),
    rounded down, so that up to one sample per class and client stays unused. Our readings: draws that are not
    positive are drawn again, and so is the whole partition until every client has `min_size` samples. The
    paper uses 5 to 6 classes for 5 clients, and 3 to 5 for 10 and 20.

    Attributes:
        min_classes: Fewest classes of a client.
        max_classes: Most classes of a client, included.
        mean: Mean of the amounts, which are relative to each other.
        std: Standard deviation of the amounts.
        min_size: Fewest samples of a client. 0 allows clients without samples, whom `federate` leaves out
            with `drop_empty`.
    """

    advice = "more classes per client"
    kind: Literal["class"] = "class"
    min_classes: Annotated[Count, Field(description="fewest classes of a client")] = 3
    max_classes: Annotated[Count, Field(description="most classes of a client, included")] = 5
    mean: Annotated[Positive, Field(description="mean of the amounts, relative to each other")] = 10.0
    std: Annotated[NonNegative, Field(description="standard deviation of the amounts")] = 3.0
    min_size: MinSize = 1

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_classes > self.max_classes:
            raise ValueError(
                f"min_classes {self.min_classes} is more than max_classes {self.max_classes}; swap them"
            )
        return self

    def _counts(self, sizes: Indices, clients: int, rng: np.random.Generator) -> Indices:
        """Raises `UsageError` for too few or too many classes."""
        classes = len(sizes)
        if self.max_classes > classes:
            raise UsageError(
                f"max_classes {self.max_classes}: the samples have {classes} classes; set max_classes (and "
                f"min_classes) to at most {classes}"
            )
        if clients * self.max_classes < classes:
            raise UsageError(
                f"max_classes {self.max_classes}: {clients} clients cannot cover {classes} classes; use more "
                "clients or a larger max_classes"
            )
        owns = self._assign(clients, classes, rng)
        amounts = np.zeros((clients, classes))
        for column in range(classes):
            owners = np.flatnonzero(owns[:, column])
            amounts[owners, column] = self._positive(len(owners), rng)
        return _floor(amounts / amounts.sum(axis=0) * sizes)

    def _assign(self, clients: int, classes: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Draw the owners of each class, [clients, classes], every class owned (lines 2 to 9)."""
        for _ in range(_COVER_DRAWS):
            counts = rng.integers(self.min_classes, self.max_classes, size=clients, endpoint=True)
            ranks = rng.permuted(np.tile(np.arange(classes), (clients, 1)), axis=1)
            owns: npt.NDArray[np.bool_] = ranks < counts[:, None]
            if owns.any(axis=0).all():
                return owns
        raise UsageError(
            f"class partition of {clients} clients with {self.min_classes} to {self.max_classes} classes "
            f"each: {_COVER_DRAWS} draws never covered all {classes} classes; use more clients or "
            "more classes each"
        )

    def _positive(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        # A negative amount would make a negative count; at least half of all draws are positive as mean > 0.
        amounts = rng.normal(self.mean, self.std, size=count)
        while (wrong := amounts <= 0).any():
            amounts[wrong] = rng.normal(self.mean, self.std, size=int(wrong.sum()))
        return amounts


@checked_dataclass
class DualDirichlet(_DrawnByClass):
    """Dual Dirichlet partition: one draw for client sizes, others for classes. FedCompass, Algorithm 5.

    With m clients, client sizes are w ~ Dir(`alpha1` / m, ...) and the class shares of each client
    v_i ~ Dir(`alpha2` x share of each class). Client i gets w_i v_ic / sum_j w_j v_jc of class c, rounded
    down: line 12 prints that denominator garbled, and the column sum is the reading that gives out each class
    once. Our addition: drawn again until every client has `min_size` samples.

    Attributes:
        alpha1: Concentration of the client sizes. None means the number of clients m.
        alpha2: Concentration of a client's class shares.
        min_size: Fewest samples of a client. 0 allows clients without samples, whom `federate` leaves out
            with `drop_empty`.
    """

    advice = "a larger alpha1 or alpha2"
    kind: Literal["dual_dirichlet"] = "dual_dirichlet"
    alpha1: Annotated[
        Positive | None,
        Field(description="concentration of the client sizes; None means the number of clients"),
    ] = None
    alpha2: Annotated[Positive, Field(description="concentration of the class shares of a client")] = 0.5
    min_size: MinSize = 1

    def _counts(self, sizes: Indices, clients: int, rng: np.random.Generator) -> Indices:
        alpha1 = float(clients) if self.alpha1 is None else self.alpha1
        own = rng.dirichlet(np.full(clients, alpha1 / clients))
        weights = own[:, None] * rng.dirichlet(self.alpha2 * sizes / sizes.sum(), size=clients)
        column = weights.sum(axis=0)
        # A class in which no client has a share (possible in floating point) stays unused.
        shares = np.divide(weights, column, out=np.zeros_like(weights), where=column > 0)
        return _floor(shares * sizes)


@checked_dataclass
class LabelDirichlet(_DrawnByClass):
    """Label Dirichlet partition: a draw of Dir(`alpha`, ..., `alpha`) divides each class among all clients.

    Every sample is used. Drawn again until every client has `min_size` samples. The per-class form of Hsu et
    al. (2019) that is in common use.

    Attributes:
        alpha: Concentration: the smaller, the more the clients differ; large values approach IID.
        min_size: Fewest samples of a client. 0 allows clients without samples, whom `federate` leaves out
            with `drop_empty`.
    """

    advice = "a larger alpha"
    kind: Literal["label_dirichlet"] = "label_dirichlet"
    alpha: Annotated[Positive, Field(description="concentration; small is more unlike, large is iid")] = 0.5
    min_size: MinSize = 10

    def _counts(self, sizes: Indices, clients: int, rng: np.random.Generator) -> Indices:
        shares = rng.dirichlet(np.full(clients, self.alpha), size=len(sizes)).T
        ends = _floor(np.cumsum(shares, axis=0) * sizes)
        # By rounding, the shares may sum to a little less than 1.
        ends[-1] = sizes
        return np.diff(np.minimum(ends, sizes), axis=0, prepend=0)


@checked_dataclass
class Natural:
    """Natural partition: one client per group (hospital, user), in the order of the group numbers."""

    kind: Literal["natural"] = "natural"

    def split(
        self, labels: Indices, clients: int, rng: np.random.Generator, groups: Indices | None = None
    ) -> list[Indices]:
        """See the module's docstring. Raises `UsageError` without groups or for another number of clients."""
        _check(labels, clients, self.kind)
        if groups is None:
            raise UsageError(
                "partition 'natural': this dataset has no natural groups; use one that has, such as "
                "heart_disease or hapt, or another partition"
            )
        if len(groups) != len(labels):
            raise UsageError(
                f"partition 'natural': {len(groups)} group numbers for {len(labels)} samples; pass one each"
            )
        _, sizes = np.unique(groups, return_counts=True)
        if clients != len(sizes):
            raise UsageError(
                f"clients {clients}: partition 'natural' has one client per group, and the samples have "
                f"{len(sizes)} groups; set clients to {len(sizes)}"
            )
        order = np.argsort(groups, kind="stable").astype(np.int64)
        return np.split(order, np.cumsum(sizes)[:-1])


def _kind_in_full(spec: Any) -> Any:
    """The mapping of a partition, in which `dirichlet` means `label_dirichlet`."""
    short = isinstance(spec, Mapping) and spec.get("kind") == "dirichlet"
    return {**spec, "kind": "label_dirichlet"} if short else spec


Partition = Annotated[
    Annotated[
        Iid | Shards | ClassPartition | DualDirichlet | LabelDirichlet | Natural | FromFile,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_kind_in_full),
]
"""Any partition; `kind` discriminates."""


def describe(data: "FederatedData", limit: int = 50) -> str:
    """Describe a partition as a plain-text table: per client its samples, in all and of each class.

    The first line has the number of samples used and the smallest, median and largest client.

    Args:
        data: The partitioned dataset.
        limit: Most clients to list.
    """
    sizes = np.diff(data.rows.offsets.numpy())
    shown = min(limit, data.clients)
    counts = [data.label_counts(i) or [] for i in range(shown)]
    head = ["client", "samples", *(str(label) for label in range(len(counts[0])))]
    rows = [[str(i), str(sizes[i]), *map(str, counts[i])] for i in range(shown)]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        f"{data.clients} clients, {sizes.sum()} of {len(data.train)} samples used; per client: "
        f"smallest {sizes.min()}, median {np.median(sizes):g}, largest {sizes.max()}"
    ]
    lines += [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]
    ]
    if shown < data.clients:
        lines.append(f"... and {data.clients - shown} more clients")
    return "\n".join(lines)


def _check(labels: Indices, clients: int, kind: str, min_size: int = 1, advice: str = "") -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UsageError(
            f"labels of {labels.dtype} with {labels.ndim} dimensions: must be a 1-D array of integers"
        )
    if clients < 1:
        raise UsageError(f"clients {clients}: must be at least 1; set the number of clients")
    if clients * min_size > len(labels):
        raise UsageError(
            f"clients {clients}: partition {kind!r} gives every client {min_size} or more of the "
            f"{len(labels)} samples, which is enough for {len(labels) // min_size}; use fewer clients "
            f"or more samples{advice}"
        )


def _floor(amounts: npt.NDArray[np.float64]) -> Indices:
    return np.floor(amounts).astype(np.int64)


def _deal(labels: Indices, counts: Indices, rng: np.random.Generator) -> list[Indices]:
    """Give each client random samples of each class, in the numbers `counts` [clients, classes]."""
    owner = np.full(len(labels), -1, dtype=np.int64)
    for column, label in enumerate(np.unique(labels)):
        rows = rng.permutation(np.flatnonzero(labels == label))
        given = np.repeat(np.arange(len(counts)), counts[:, column])
        owner[rows[: len(given)]] = given
    order = np.argsort(owner, kind="stable").astype(np.int64)
    used = order[np.count_nonzero(owner < 0) :]
    return np.split(used, np.cumsum(counts.sum(axis=1))[:-1])
