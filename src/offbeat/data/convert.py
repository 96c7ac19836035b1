"""Conversion of users' collections of samples: arrays, lists, frames, datasets of other libraries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from offbeat.core.errors import UsageError
from offbeat.core.validation import did_you_mean
from offbeat.data.columns import as_pandas, column_names, is_column, is_frame, is_series
from offbeat.data.dataset import Dataset, MapDataset, Samples, concatenated
from offbeat.data.hugging_face import as_map_dataset, is_split, is_split_dict, is_stream, train_and
from offbeat.data.leaf import is_leaf, samples_by_user


@dataclass(frozen=True)
class Sets:
    """A federation's data, converted.

    Attributes:
        train: The train set, or one for each client.
        validation: One set for each client, or the share of the train samples.
        test: The common test set. None means no test set.
        root: The server's samples. None means no such samples.
        names: The clients' names. None means that they have numbers only.
    """

    train: Samples | list[Samples]
    validation: list[Samples] | float = 0.0
    test: Samples | None = None
    root: Samples | None = None
    names: list[Any] | None = None


def as_sets(train: Any, test: Any, parts: Any, validation: Any, root: Any, label: str | None) -> Sets:
    """Convert what `federate` takes. Raises `UsageError` for a set that `as_samples` does not take."""
    if is_split_dict(train) and ("train" in train or type(train) is not dict):
        train, own_test = train_and(train, "test" if test is None else None)
        test = own_test if test is None else test
    if parts is None and is_leaf(train):
        train = samples_by_user(train)
    by_client = train if parts is None else parts
    names = list(by_client) if isinstance(by_client, Mapping) else None
    return Sets(
        _one_per_client(train, label) if parts is None else as_samples(train, label),
        validation if isinstance(validation, int | float) else _validation_sets(validation, names, label),
        _other_set(test, label),
        _other_set(root, label),
        names,
    )


def as_train_and_other(data: Any, other: str, label: str | None) -> tuple[Samples, Samples | None]:
    """Convert a train set, and another set if there is one.

    Args:
        data: Whatever `as_samples` takes, or a pair of these (a pair of columns is x and y), of which the
            other may be None; or splits of Hugging Face.
        other: Name of the other split.
        label: The column of the targets.
    """
    if is_split_dict(data):
        data = train_and(data, other)
    if isinstance(data, tuple) and len(data) == 2 and not is_labelled(data, label):
        return as_samples(data[0], label), _other_set(data[1], label)
    return as_samples(data, label), None


def as_samples(data: Any, label: str | None = None) -> Samples:
    """Wrap a user's data as a collection of samples.

    Args:
        data: A collection of samples; a tensor or an array (x without targets); a pair (x, y) of tensors,
            arrays, lists, frames or series, also as {"x": x, "y": y}; a frame with `label`; a
            `TensorDataset` of one or two tensors; a dataset of Hugging Face; the samples of all users of
            LEAF's JSON; or any map-style dataset. Frames and series are of pandas, polars or Arrow.
        label: The column of the targets, for a frame or a dataset of Hugging Face. None means that a dataset
            of Hugging Face gives its columns by name.

    Raises:
        UsageError: The data are none of these, or values are missing.
    """
    data = as_pandas(data)
    if label is not None and not isinstance(data, Samples) and not _has_columns(data):
        raise UsageError(
            f"label = {label!r} is for a pandas frame or a Hugging Face dataset, and this is a "
            f"{type(data).__name__}: leave it out"
        )
    match data:
        # Tensors and arrays are asked for first, since they have a method `gather` too.
        case Tensor() | np.ndarray():
            return Dataset(data)
        case _ if is_frame(data):
            return _of_frame(data, label)
        case Samples():
            return data
        case _ if is_split(data):
            return as_map_dataset(data, label)
        case _ if is_stream(data):
            raise UsageError(
                f"a {type(data).__name__} is a stream, whose samples have no numbers: load the dataset "
                "without streaming, or read it into a list"
            )
        case str() | bytes():
            raise UsageError(f"a {type(data).__name__} is no dataset: read the file that it names")
        case TensorDataset(tensors=tensors) if len(tensors) in (1, 2):
            return Dataset(tensors[0], tensors[1] if len(tensors) == 2 else None)
        case _ if is_leaf(data):
            return _of_users(samples_by_user(data))
        case DataLoader():
            raise UsageError("a DataLoader is no dataset: give its .dataset; batches are drawn for each task")
        case Mapping():
            return _of_mapping(data)
        case tuple():
            return _of_tuple(data)
        case _ if is_pair(data):
            return Dataset(*data)
        case _ if is_series(data):
            raise UsageError("a Series is one column: give a pair (frame, series) of inputs and targets")
        case _:
            return MapDataset(data)


def _other_set(data: Any, label: str | None) -> Samples | None:
    return None if data is None else _as_other_samples(data, label)


def _as_other_samples(data: Any, label: str | None) -> Samples:
    """Convert as `as_samples` does, but ignore `label` where the data have no columns."""
    return as_samples(data, label if label and _has_columns(as_pandas(data)) else None)


def _has_columns(data: Any) -> bool:
    return is_frame(data) or is_split(data) or is_stream(data)


def is_pair(data: Any) -> bool:
    """Whether it is x and y: a tuple of two columns, or a list of two that are no samples of one kind.

    Samples of a list have one shape; x and y have one length, and in a list other numbers of dimensions.
    """
    if isinstance(data, Mapping):
        return set(data) == {"x", "y"} and all(map(is_column, data.values()))
    if not isinstance(data, tuple | list) or len(data) != 2 or not all(map(is_column, data)):
        return False
    x, y = map(as_pandas, data)
    if is_frame(x) and is_frame(y) and set(x.columns) == set(y.columns):
        # Two frames with the same columns, in any order, are a train and a test set.
        return False
    if isinstance(data, tuple) or any(map(is_series, (x, y))):
        return True
    if is_frame(x) or is_frame(y):
        return False
    return len(x) == len(y) > 0 and _dimensions(x) != _dimensions(y)


def is_labelled(pair: tuple[Any, ...], label: str | None) -> bool:
    """Whether a tuple of two is x and y, and not a train and a test set, whose targets are in `label`."""
    named = len(pair) == 2 and isinstance(pair[0], Mapping) and is_column(pair[1])
    return label is None and (is_pair(pair) or named)


def _dimensions(value: Any) -> int:
    """Number of dimensions of an array or of nested lists."""
    if hasattr(value, "ndim"):
        return int(value.ndim)
    nested = isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value)
    return 1 + _dimensions(value[0]) if nested else 0


def _one_per_client(train: Any, label: str | None) -> list[Samples]:
    """The datasets of a sequence or a mapping that has one per client."""
    several = isinstance(train, list | tuple | Mapping)
    if not several or is_pair(train):
        told = "x and y" if several else f"a {type(train).__name__}"
        such = ", such as frame.groupby(column).indices" if is_frame(train) else ""
        raise UsageError(
            f"{told} without parts: give one array of sample indices per client as parts{such}, or a list "
            "with one dataset per client"
        )
    if not train:
        raise UsageError("no datasets: at least one client is needed; give one dataset per client")
    if not isinstance(train, Mapping):
        return [as_samples(samples, label) for samples in train]
    sets = []
    for name, samples in train.items():
        try:
            sets.append(as_samples(samples, label))
        except UsageError as error:
            raise UsageError(f"client {name!r}: {error}") from None
    return sets


def _validation_sets(validation: Any, names: list[Any] | None, label: str | None) -> list[Samples]:
    """The validation sets in the order of the clients."""
    if is_leaf(validation):
        validation = samples_by_user(validation)
    if isinstance(validation, Mapping):
        if names is None or set(validation) != set(names):
            raise UsageError(
                "validation by the clients' names: give the train sets or parts by the same names, or a list"
            )
        validation = [validation[name] for name in names]
    return [_as_other_samples(samples, label) for samples in validation]


def _of_frame(frame: Any, label: str | None) -> Dataset:
    if label is None:
        raise UsageError(
            "a DataFrame without label: name the column of the targets, as in federate(frame, …, label='…') "
            "or as_samples(frame, label='…'), or give a pair (frame, series); inputs alone are "
            "frame.to_numpy()"
        )
    names = list(frame.columns)
    column_names("the frame", frame)
    if label not in names:
        raise UsageError(
            f"label = {label!r} is no column of the frame{did_you_mean(label, map(str, names))}: it has "
            f"{', '.join(map(str, names[:20]))}"
        )
    return Dataset(frame.drop(columns=label), frame[label])


def _of_mapping(data: Mapping[Any, Any]) -> Samples:
    if is_pair(data):
        return Dataset(data["x"], data["y"])
    if is_split_dict(data):
        raise UsageError(
            f"a {type(data).__name__} has the splits {', '.join(data)}: give one of them, such as "
            f"data[{next(iter(data))!r}]"
        )
    raise UsageError(
        f"a {type(data).__name__} is no dataset: give Dataset({{…}}, y) for inputs by name, or "
        "offbeat.federate({client: dataset, …}) for one dataset per client"
    )


def _of_users(users: Mapping[str, Any]) -> Samples:
    """The samples of all users in one collection."""
    if not users:
        raise UsageError("LEAF's data have no users: read a file that has")
    return concatenated([as_samples(own) for own in users.values()])


def _of_tuple(data: tuple[Any, ...]) -> Samples:
    if is_labelled(data, None):
        return Dataset(*data)
    told = ", ".join(type(part).__name__ for part in data[:4])
    raise UsageError(
        f"a tuple ({told}) is no dataset: a pair is (x, y), of tensors, arrays, lists, frames or series of "
        "one length; samples come as a list, and one dataset per client as a list of datasets"
    )
