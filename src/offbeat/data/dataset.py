"""Collections of samples, from which a learner gathers batches.

A collection has a length and makes a batch of the samples at given rows. `Dataset` holds tensors, of which a
batch is one indexed copy; `MapDataset` wraps any map-style dataset. A batch is what the collection gives:

| collection                                     | batch                                                |
|------------------------------------------------|------------------------------------------------------|
| `Dataset(x, y)`                                | (x, y)                                               |
| `Dataset(x)`                                   | x                                                    |
| `Dataset({"a": …, "b": …}, y)`                 | ({"a": …, "b": …}, y)                                |
| `Dataset({"a": …, "b": …})`                    | {"a": …, "b": …}                                     |
| `MapDataset(dataset, collate)`                 | what `collate` makes of a list of samples            |
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sysconfig import get_path
from traceback import extract_tb
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, default_collate

from offbeat.core.errors import OffbeatError, RunError, UsageError
from offbeat.data.columns import Columns, as_tensor, column_names, is_missing, listed, with_one_index

Batch = Any
"""Samples as a module and its loss take them: a tensor, or tuples, lists and mappings of tensors."""

IndexLike = Tensor | npt.NDArray[np.integer] | Sequence[int]


@runtime_checkable
class Samples(Protocol):
    """A collection of samples with a length, in batches."""

    def __len__(self) -> int:
        """Number of samples N."""

    def gather(self, rows: Tensor) -> Batch:
        """The samples at `rows`, int64 [K] in [0, N), as one batch."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Samples, and their targets if there are any, as tensors.

    Arrays are converted to tensors that share their memory; lists and pandas frames and series are copied.

    Attributes:
        x: The samples, [N, ...] of any dtype, or several such tensors by name, which the module receives as
            keyword arguments.
        y: The targets, [N, ...] of any dtype. None means that there are none.
        classes: Number of classes. With it, y is int64 [N] with values in [0, classes), or [N, ...] if every
            element (voxel, token) has a class. None means that the targets are no classes.
        columns: Names of the columns of "x", "y" or an input, each [N, columns], by which the tables of
            several parties are matched. Frames have their own; one column of targets needs none.

    Raises:
        UsageError: A value is missing, the lengths differ, or rows of pandas have other labels. With
            `classes`, the targets have another dtype or shape, or one is out of range. The names of columns
            are not those of a frame, are too few, or stand twice.
    """

    x: Any  # Tensor | Mapping[str, Tensor]
    y: Any = None  # Tensor | None
    classes: int | None = None
    columns: Columns = field(default_factory=dict)

    def __repr__(self) -> str:
        """The dataset in a line, without its samples."""
        shown = [f"{name} {part.dtype} {list(part.shape)}" for name, part in self._parts()]
        classes = "" if self.classes is None else f", {self.classes} classes"
        return f"<Dataset: {', '.join(shown).replace('torch.', '')}{classes}>"

    def __post_init__(self) -> None:
        given = with_one_index(dict(self._parts()))
        parts = {n: as_tensor(n, part, targets=n == self._target) for n, part in given.items()}
        if self.y is not None:
            object.__setattr__(self, "y", parts.pop(self._target))
        object.__setattr__(self, "x", parts if isinstance(self.x, Mapping) else parts["x"])
        object.__setattr__(self, "columns", self._named_columns(given))
        lengths = {name: len(part) for name, part in self._parts()}
        if len(set(lengths.values())) != 1:
            told = ", ".join(f"{name} has {length}" for name, length in lengths.items()) or "x is empty"
            raise UsageError(f"dataset: {told} samples: every tensor needs one row for each sample")
        if self.classes is not None:
            self._check_classes(self.classes)

    def _named_columns(self, given: Mapping[str, Any]) -> Columns:
        """The names of columns that were given, and those that the parts had before they became tensors."""
        columns = {name: tuple(own) for name, own in self.columns.items()}
        shapes = {name: tuple(part.shape[1:]) for name, part in self._parts()}
        for name, part in given.items():
            own = column_names(name, part)
            if own is None or (name == self._target and len(own) == 1):
                # One column of targets has nothing to be matched with.
                continue
            if columns.setdefault(name, own) != own:
                raise UsageError(
                    f"dataset: the columns of {name} are {listed(own)}, and not {listed(columns[name])}: "
                    "leave the argument columns out, since a table has its own names"
                )
        for name, names in columns.items():
            if shapes.get(name) != (len(names),) or len(set(names)) < len(names):
                raise UsageError(
                    f"dataset: columns of {name} are {listed(names)}: give each column of {name} its own "
                    f"name; {name} has the shape {[len(self), *shapes.get(name, ())]}"
                )
        return columns

    def _parts(self) -> list[tuple[str, Tensor]]:
        named = list(self.x.items()) if isinstance(self.x, Mapping) else [("x", self.x)]
        return named if self.y is None else [*named, (self._target, self.y)]

    @property
    def _target(self) -> str:
        """The name of y among the parts, which no input has."""
        return "the targets y" if isinstance(self.x, Mapping) and "y" in self.x else "y"

    def _check_classes(self, classes: int) -> None:
        y = self.y
        if y is None or y.dtype != torch.int64:
            told = "no y" if y is None else f"y {y.dtype} {tuple(y.shape)}"
            raise UsageError(
                f"dataset with classes = {classes} and {told}: y must be torch.int64; convert it with "
                ".long(), or leave classes out where the targets are no classes"
            )
        if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < classes:
            raise UsageError(
                f"labels {int(y.min())} to {int(y.max())} with classes {classes}: labels must be 0 to "
                "classes - 1; renumber the labels or raise classes"
            )

    def __len__(self) -> int:
        return len(self._parts()[0][1])

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample, without the leading N. Raises `UsageError` where x are several tensors."""
        if isinstance(self.x, Mapping):
            raise UsageError(f"samples of {', '.join(self.x)} have no single shape: give a model of your own")
        return tuple(self.x.shape[1:])

    def gather(self, rows: Tensor) -> Batch:
        """The samples at `rows`, int64 [K] on the tensors' device: x, or (x, y), in the layout of x."""
        if isinstance(self.x, Mapping):
            x: Any = {name: part.index_select(0, rows) for name, part in self.x.items()}
        else:
            x = _select(self.x, rows)
        return x if self.y is None else (x, self.y.index_select(0, rows))

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(part.nbytes for _, part in self._parts())

    def to(self, device: str) -> "Dataset":
        """The dataset with its tensors on a device; the same object if they are there already."""
        if all(part.device == torch.device(device) for _, part in self._parts()):
            return self
        x = (
            {name: part.to(device) for name, part in self.x.items()}
            if isinstance(self.x, Mapping)
            else self.x.to(device)
        )
        return Dataset(x, None if self.y is None else self.y.to(device), self.classes, self.columns)

    def subset(self, indices: IndexLike) -> "Dataset":
        """Copy the samples at `indices`, in that order.

        Args:
            indices: Integers [K] in [0, N), repeats allowed.

        Raises:
            UsageError: An index is out of range.
        """
        rows = as_rows(indices)
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self):
            raise UsageError(
                f"subset indices {int(rows.min())} to {int(rows.max())}: must be 0 to {len(self) - 1}; "
                f"the dataset has {len(self)} samples"
            )
        found = self.gather(rows)
        x, y = (found, None) if self.y is None else found
        return Dataset(x, y, self.classes, self.columns)

    def with_columns(self, columns: Columns) -> "Dataset":
        """The dataset with its columns in another order, by their names; itself if they have it already.

        Columns without names get these names, by position. Names of a part that is not there have no effect.

        Raises:
            UsageError: The dataset has other columns.
        """
        parts, named = dict(self._parts()), dict(self.columns)
        for name in [name for name in columns if name in parts and named.get(name) != columns[name]]:
            wanted, part = columns[name], parts[name]
            own = named.get(name, wanted)
            lacks, has = ([n for n in a if n not in b] for a, b in ((wanted, own), (own, wanted)))
            told = [f"lacks {listed(lacks)}"] * bool(lacks) + [f"has {listed(has)}"] * bool(has)
            if not told and part.shape[1:] != (len(wanted),):
                told = [f"has samples of shape {list(part.shape[1:])} without names"]
            if told:
                raise UsageError(f"{name} {' and '.join(told)}; give {listed(wanted)}, in any order")
            if own != wanted:
                parts[name] = part[:, [own.index(n) for n in wanted]]
            named[name] = wanted
        if named == self.columns:
            return self
        y = None if self.y is None else parts.pop(self._target)
        return Dataset(parts if isinstance(self.x, Mapping) else parts["x"], y, self.classes, named)


def _select(x: Tensor, rows: Tensor) -> Tensor:
    """Samples of x in its memory layout: `index_select` alone would give up channels_last."""
    if x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return x.index_select(0, rows)


Collate = Callable[[list[Any]], Batch]


@dataclass(frozen=True, eq=False)
class MapDataset:
    """A map-style dataset of any library, with `len(dataset)` and `dataset[i]` as in PyTorch.

    If the dataset has `__getitems__`, one call reads a batch.

    Attributes:
        dataset: The dataset.
        collate: Makes a batch of a list of samples.
        labels: The samples' classes, int64 [N], to divide and count them by. None means unknown.
        classes: Number of classes of `labels`.

    Raises:
        UsageError: The dataset has no length or no access by number, or the labels do not fit.
    """

    dataset: Any
    collate: Collate = default_collate
    labels: Tensor | None = field(default=None, repr=False)
    classes: int | None = None

    def __post_init__(self) -> None:
        if not (hasattr(self.dataset, "__len__") and hasattr(self.dataset, "__getitem__")):
            raise UsageError(
                f"a {type(self.dataset).__name__} is no map-style dataset: it needs __len__ and __getitem__; "
                "read a stream into a list first"
            )
        if self.labels is not None:
            # Making a dataset checks labels and classes.
            Dataset(torch.empty(len(self), 0), self.labels, self.classes)

    @property
    def y(self) -> Tensor | None:
        """The samples' classes."""
        return self.labels

    def subset(self, indices: IndexLike) -> "MapDataset":
        """The samples at `indices`, [K] in [0, N), in that order; nothing is read."""
        rows = as_rows(indices)
        labels = None if self.labels is None else self.labels[rows]
        return MapDataset(Subset(self.dataset, rows.tolist()), self.collate, labels, self.classes)

    def __len__(self) -> int:
        return len(self.dataset)

    def gather(self, rows: Tensor) -> Batch:
        """The samples at `rows`, int64 [K], collated.

        Raises:
            UnreadableSampleError: The dataset raises.
            UsageError: The samples need another collate.
        """
        samples = self._read(rows.tolist())
        advice = "mend its collate"
        if self.collate is default_collate:
            advice = (
                "give the dataset a transform that makes tensors, or give MapDataset(dataset, collate), or "
                "tensors or arrays"
            )
        try:
            return self.collate(samples)
        except OffbeatError:
            raise
        except Exception as error:
            raise UsageError(
                f"the samples of a {type(self.dataset).__name__} do not make a batch "
                f"({told_error(error)}): {advice}"
            ) from error

    def _read(self, rows: list[int]) -> list[Any]:
        if hasattr(self.dataset, "__getitems__"):
            try:
                samples: list[Any] = self.dataset.__getitems__(rows)
            except OffbeatError:
                raise
            except Exception as error:
                for row in rows:
                    # Reading one by one shows which sample fails.
                    self._read_one(row)
                raise UnreadableSampleError(rows[0], told_error(error)) from error
        else:
            samples = [self._read_one(row) for row in rows]
        if self.collate is default_collate:
            # The default collate function takes a masked array for a plain one.
            for row, sample in zip(rows, samples, strict=False):
                if (missing := _missing_value(sample)) is not None:
                    raise UnreadableSampleError(row, missing)
        return samples

    def _read_one(self, row: int) -> Any:
        try:
            return self.dataset[row]
        except OffbeatError:
            raise
        except Exception as error:
            raise UnreadableSampleError(row, told_error(error)) from error


class UnreadableSampleError(RunError):
    """A sample that its dataset does not give.

    Args:
        row: Its number in the collection.
        why: What is wrong with it, in words.
    """

    def __init__(self, row: int, why: str) -> None:
        super().__init__(row, why)
        self.row, self.why = row, why

    def __str__(self) -> str:
        return f"sample {self.row} cannot be read: {self.why}"


def told_error(error: Exception) -> str:
    """An error of a user's code in one line, with the innermost line of it that is no library's."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    where = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}: " if frames else ""
    return f"{where}{type(error).__name__}: {' '.join(str(error).split())}"


def _is_library(file: str) -> bool:
    here = str(Path(__file__).parents[1])
    return "site-packages" in file or file.startswith((here, get_path("stdlib"), "<"))


def _missing_value(sample: Any) -> str | None:
    """The problem with a sample that lacks a value, in words; None means that it has all."""
    match sample:
        case np.ma.MaskedArray():
            if bool(np.ma.getmaskarray(sample).any()):
                return "it is a masked array, with values masked: fill them, or leave the sample out"
        case Mapping():
            return next(filter(None, map(_missing_value, sample.values())), None)
        case tuple() | list():
            return next(filter(None, map(_missing_value, sample)), None)
        case _ if is_missing(sample):
            return "a value is missing (None): fill it, or leave the sample out"
    return None


def concatenated(parts: Sequence[Samples]) -> Samples:
    """One collection of several, in their order.

    Tensors of the same shapes and dtypes become tensors. Map-style datasets must have the same `collate`.

    Raises:
        UsageError: Collections of different kinds cannot be put together.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    if all(isinstance(part, Dataset) for part in parts):
        return _joined([part for part in parts if isinstance(part, Dataset)])
    if isinstance(first, MapDataset) and all(
        isinstance(part, MapDataset) and part.collate is first.collate for part in parts
    ):
        maps = [part for part in parts if isinstance(part, MapDataset)]
        known = [part.labels for part in maps if part.labels is not None]
        labels = torch.cat(known) if len(known) == len(maps) else None
        return MapDataset(
            ConcatDataset([part.dataset for part in maps]), first.collate, labels, first.classes
        )
    kinds = ", ".join(sorted({type(part).__name__ for part in parts}))
    raise UsageError(
        f"datasets of different kinds cannot be put together ({kinds}): make all of them tensors, or all "
        "map-style datasets with the same collate"
    )


def _joined(parts: Sequence[Dataset]) -> Dataset:
    # An empty list has no shape to compare.
    parts = [part for part in parts if len(part)] or parts[:1]
    kinds = {tuple(sorted((name, str(p.dtype), p.shape[1:]) for name, p in d._parts())) for d in parts}
    if len(kinds) > 1 or len({d.classes for d in parts}) > 1:
        told = " and ".join(
            ", ".join(f"{name} {dtype} {list(shape)}" for name, dtype, shape in kind)
            for kind in list(kinds)[:2]
        )
        raise UsageError(
            f"datasets of different samples cannot be put together ({told}): every client's need the same "
            "shapes, dtypes and classes"
        )
    first = parts[0]
    if isinstance(first.x, Mapping):
        x: Any = {name: torch.cat([d.x[name] for d in parts]) for name in first.x}
    else:
        x = torch.cat([d.x for d in parts])
    y = None if first.y is None else torch.cat([d.y for d in parts])
    return Dataset(x, y, first.classes, first.columns)


def label_counts(samples: Samples, rows: Tensor | None = None) -> list[int] | None:
    """Number of samples of each class.

    Args:
        samples: The collection.
        rows: Which of its samples, int64 [K]. None means all.

    Returns:
        `classes` numbers. None means that the classes are not known.
    """
    labels = class_labels(samples)
    if labels is None:
        return None
    counted = labels if rows is None else labels[rows]
    counts: list[int] = torch.bincount(counted, minlength=getattr(samples, "classes", 0)).tolist()
    return counts


def class_labels(samples: Samples) -> Tensor | None:
    """The samples' classes, int64 [N]. None means that they are not known, or that a sample has several."""
    if not isinstance(samples, Dataset | MapDataset) or samples.classes is None or samples.y is None:
        return None
    return samples.y if samples.y.dim() == 1 else None


def sample_shape(samples: Samples) -> tuple[int, ...] | None:
    """Shape of one sample, without N. None means that a sample is no single tensor, or that none exists."""
    if isinstance(samples, Dataset):
        return samples.sample_shape if isinstance(samples.x, Tensor) else None
    match samples.gather(torch.zeros(1, dtype=torch.int64)) if len(samples) else None:
        case (Tensor() as x, _) | (Tensor() as x):
            return tuple(x.shape[1:])
        case _:
            return None


def to_device(batch: Batch, device: str) -> Batch:
    """A batch with its tensors on a device: tensors, tuples, lists, mappings, and objects with `to`."""
    match batch:
        case Tensor():
            # From pinned memory the copy to a GPU goes on while the program does.
            pinned = device.startswith("cuda") and batch.device.type == "cpu"
            return (batch.pin_memory() if pinned else batch).to(device, non_blocking=True)
        case Mapping():
            return {name: to_device(part, device) for name, part in batch.items()}
        case tuple() | list():
            return type(batch)(to_device(part, device) for part in batch)
        case _:
            return batch.to(device) if hasattr(batch, "to") else batch


def is_finite(batch: Batch) -> bool:
    """Whether all floating-point values of a batch are finite."""
    match batch:
        case Tensor():
            return not batch.is_floating_point() or bool(batch.isfinite().all())
        case Mapping():
            return all(map(is_finite, batch.values()))
        case tuple() | list():
            return all(map(is_finite, batch))
        case _:
            return True


def describe_batch(batch: Batch) -> str:
    """Dtypes and shapes of a batch, for messages."""
    match batch:
        case Tensor():
            return f"{str(batch.dtype).removeprefix('torch.')} {list(batch.shape)}"
        case Mapping():
            return "{" + ", ".join(f"{name}: {describe_batch(part)}" for name, part in batch.items()) + "}"
        case tuple() | list() if len(batch) > 2 and len({type(part) for part in batch}) == 1 == len(
            told := {describe_batch(part) for part in batch}
        ):
            return f"({told.pop()}, {len(batch)} in all)"
        case tuple() | list():
            return "(" + ", ".join(map(describe_batch, batch)) + ")"
        case _:
            return type(batch).__name__


def as_rows(indices: IndexLike) -> Tensor:
    """Indices as int64 [K]."""
    if isinstance(indices, Tensor):
        return indices.to(torch.int64)
    # `np.array` copies, since PyTorch warns about read-only arrays.
    return torch.from_numpy(np.array(indices, dtype=np.int64))
