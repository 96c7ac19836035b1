"""Conversion of users' collections of samples: arrays, lists, frames, datasets of other libraries."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from offbeat.core.errors import UsageError
from offbeat.core.validation import did_you_mean
from offbeat.data.columns import as_pandas, column_names, is_column, is_frame, is_series
from offbeat.data.dataset import Dataset, MapDataset, Samples, concatenated
from offbeat.data.hugging_face import as_map_dataset, is_split, is_split_dict, is_stream
from offbeat.data.leaf import is_leaf, samples_by_user


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
    if is_frame(data):
        return _of_frame(data, label)
    if is_split(data):
        return as_map_dataset(data, label)
    if is_stream(data):
        raise UsageError(
            f"a {type(data).__name__} is a stream, whose samples have no numbers: load the dataset without "
            "streaming, or read it into a list"
        )
    if label is not None and not isinstance(data, Samples):
        raise UsageError(
            f"label = {label!r} is for a pandas frame or a Hugging Face dataset, and this is a "
            f"{type(data).__name__}: leave it out"
        )
    match data:
        # Tensors and arrays are asked for first, since they have a method `gather` too.
        case Tensor() | np.ndarray():
            return Dataset(data)
        case Samples():
            return data
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


def as_other_samples(data: Any, label: str | None) -> Samples:
    """Convert as `as_samples` does, but ignore `label` where the data have no columns."""
    data = as_pandas(data)
    return as_samples(data, label if is_frame(data) or is_split(data) else None)


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
