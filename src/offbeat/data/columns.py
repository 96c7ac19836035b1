"""Columns of numbers as tensors: arrays, lists, series and frames. Missing values are refused, never filled.

A column has one row for each sample: x or y of a `Dataset`. NumPy's masked arrays, pandas and lists have
each its own sign of a missing value; converted without a look at it, the value below a mask becomes data.
The columns of tables have names, and the rows of pandas have labels: both are matched by these, not by place.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offbeat.core.errors import UsageError

_ENCODE = "encode it as numbers, in the same way for all clients (classes as 0 to C − 1)"
Columns = Mapping[str, tuple[str, ...]]
"""Names of the columns of a dataset's tables, in their order: of "x", "y" or an input by its name."""


def is_frame(value: Any) -> bool:
    """Whether it is a pandas DataFrame."""
    return _is_pandas(value, "DataFrame")


def is_series(value: Any) -> bool:
    """Whether it is a pandas Series."""
    return _is_pandas(value, "Series")


def as_pandas(value: Any) -> Any:
    """A table or a column of polars or Arrow as one of pandas; anything else as it is.

    Raises:
        UsageError: The table has not been read yet, or a library for the conversion is missing.
    """
    library = type(value).__module__.partition(".")[0]
    if library not in ("polars", "pyarrow"):
        return value
    if not hasattr(value, "to_pandas"):
        read = {"LazyFrame": ".collect()", "Dataset": ".to_table()"}.get(type(value).__name__)
        if read is None:
            return value
        raise UsageError(f"a {type(value).__name__} of {library} is not read yet: read it, by {read}")
    try:
        return value.to_pandas()
    except ImportError as error:
        raise UsageError(
            f"a {type(value).__name__} of {library} becomes one of pandas here ({error}): install what is "
            "missing, or give arrays, by .to_numpy()"
        ) from None


def is_groupby(value: Any) -> bool:
    """Whether it is the result of pandas's `frame.groupby(column)`."""
    return hasattr(value, "groups") and hasattr(value, "indices") and hasattr(value, "ngroups")


def is_index(value: Any) -> bool:
    """Whether it is a pandas Index, which holds labels of rows and not their positions."""
    return _is_pandas(value, "Index")


def _is_pandas(value: Any, kind: str) -> bool:
    # No object is of pandas where pandas is not imported.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, getattr(pandas, kind))


def column_names(name: str, value: Any) -> tuple[str, ...] | None:
    """The names of a table's columns, of pandas, polars or Arrow; None where it has none.

    Args:
        name: What the table is called in messages, such as "x".
        value: Anything.

    Raises:
        UsageError: Two columns have one name.
    """
    found: Any = list(value.columns) if is_frame(value) else getattr(value, "column_names", None)
    found = getattr(value, "columns", None) if found is None else found
    if not isinstance(found, list) or not (is_frame(value) or all(isinstance(own, str) for own in found)):
        return None
    names = tuple(map(str, found))
    if twice := [own for at, own in enumerate(names) if own in names[:at]]:
        raise UsageError(f"dataset: {name} has several columns {twice[0]!r}: give each column its own name")
    return names


def index_of(value: Any) -> Any:
    """The index of a frame or a series, or of the first of several; None where there is none."""
    if is_frame(value) or is_series(value):
        return value.index
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ()
    return next((own for own in map(index_of, parts) if own is not None), None)


def with_one_index(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of a dataset, of which those of pandas have their rows in the order of the first one's index.

    Args:
        parts: x or several inputs, and y, by name.

    Raises:
        UsageError: An index has other labels, or has a label twice in another order.
    """
    tables = [name for name, part in parts.items() if is_frame(part) or is_series(part)]
    ordered = dict(parts)
    for name in tables[1:]:
        wanted, own = parts[tables[0]].index, parts[name].index
        if len(own) != len(wanted) or own.equals(wanted):
            continue
        if not own.is_unique or not wanted.is_unique:
            why = f"have labels that stand twice, in another order than those of {tables[0]}"
        elif len(other := own.difference(wanted, sort=False)):
            why = f"have other labels than those of {tables[0]}, such as {other[0]!r}"
        else:
            ordered[name] = parts[name].loc[wanted]
            continue
        raise UsageError(
            f"dataset: the rows of {name} {why}: give both one index, or {name}.to_numpy() where the rows "
            "are in the same order"
        )
    return ordered


def is_column(value: Any) -> bool:
    """Whether a part of a pair is x or y: a tensor, an array, pandas's, or a sequence of numbers or of these.

    A sequence of tuples or mappings is none, as its elements are samples with several parts.
    """
    if isinstance(value, Tensor | np.ndarray) or is_frame(value) or is_series(value):
        return True
    if isinstance(value, str | bytes | tuple) or not (isinstance(value, Sequence) or _is_array_like(value)):
        return False
    return not len(value) or not isinstance(value[0], tuple | dict)


def _is_array_like(value: Any) -> bool:
    return hasattr(value, "__array__") and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def as_tensor(name: str, value: Any, *, targets: bool = False) -> Tensor:
    """A column as a tensor, of an array without a copy.

    Numbers of lists become float32 or int64, and so do those of pandas: a frame is float32 [N, columns].
    Tables of polars and Arrow become such of pandas before.

    Args:
        name: What it is called in messages, such as "x".
        value: The column.
        targets: Whether they are targets, of which a frame with one column of integers stays int64 [N, 1].

    Raises:
        UsageError: A value is missing or no number, samples have different shapes, or there is none.
    """
    if isinstance(value, Tensor):
        tensor = value
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
            kind = "jagged" if tensor.is_nested else "meta" if tensor.is_meta else "sparse"
            raise _refused(name, f"a {kind} tensor", "give a dense one, such as by .to_dense()")
    else:
        value = as_pandas(value)
        one_column = targets and is_frame(value) and value.shape[1] == 1
        column = value.iloc[:, 0] if one_column else value
        tensor = _of_array(name, value, _array(name, column))
        tensor = tensor.unsqueeze(1) if one_column else tensor
    if not tensor.dim():
        raise UsageError(f"dataset: {name} has no dimension: it needs one row for each sample")
    return tensor


def _of_array(name: str, value: Any, array: npt.NDArray[Any]) -> Tensor:
    if any(stride < 0 for stride in array.strides):
        # PyTorch does not take an array with negative strides.
        array = array.copy()
    try:
        # Nothing writes into the samples, so a read-only array, as pandas gives, is no reason for a warning.
        with warnings.catch_warnings(action="ignore"):
            return torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError) as error:
        if array.dtype.names:
            raise _refused(
                name, "a structured array", "give pandas.DataFrame(array), or its fields"
            ) from None
        if array.dtype.kind in "US":
            raise _refused(name, f"a {type(value).__name__} of text", _ENCODE) from None
        raise _refused(
            name,
            f"a {type(value).__name__} of {array.dtype} ({error})",
            "give a tensor or an array of numbers",
        ) from None


def _array(name: str, value: Any) -> npt.NDArray[Any]:
    """The column as an array of numbers."""
    if is_frame(value):
        columns = [_pandas_column(name, value.iloc[:, i]) for i in range(value.shape[1])]
        if not columns:
            raise _refused(name, "a DataFrame without columns", "give one column at least")
        return np.stack([column.astype(np.float32) for column in columns], axis=1)
    if is_series(value):
        return _pandas_column(name, value)
    # A sparse matrix of SciPy has this method.
    if hasattr(value, "toarray"):
        raise _refused(name, f"a sparse {type(value).__name__}", "give a dense one, such as by .toarray()")
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return _list_column(name, value)
    try:
        array = value if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
    except Exception as error:
        raise _refused(name, f"a {type(value).__name__}", f"no array can be made of it ({error})") from None
    if isinstance(array, np.ma.MaskedArray):
        return _unmasked(name, array)
    return _objects(name, array) if array.dtype == object else array


def _unmasked(name: str, array: np.ma.MaskedArray[Any, Any]) -> npt.NDArray[Any]:
    """The data of a masked array of which no value is masked."""
    mask = np.ma.getmaskarray(array)
    if mask.any():
        first = int(np.argmax(mask.reshape(len(mask), -1).any(axis=1))) if mask.ndim else 0
        raise _missing(name, int(mask.sum()), first, "masked", ".filled(value)")
    return np.asarray(array.data)


def _list_column(name: str, values: Sequence[Any]) -> npt.NDArray[Any]:
    """The array of a list of numbers, lists, arrays or tensors."""
    if len(values) and all(isinstance(value, Tensor) for value in values):
        values = [value.numpy(force=True) for value in values]
    try:
        if any(isinstance(value, np.ma.MaskedArray) for value in values):
            return _unmasked(name, np.ma.stack([np.ma.asarray(value) for value in values]))
        array = np.asarray(values)
    except UsageError:
        raise
    except ValueError:
        raise _refused(
            name, "a list of samples of different shapes", "pad them, or give MapDataset(samples, collate)"
        ) from None
    if array.dtype == object:
        return _objects(name, array)
    plain = array.dtype == np.float64 and not (len(values) and isinstance(values[0], np.ndarray | np.generic))
    # A list of Python's floats has no dtype of its own, so it becomes float32.
    return array.astype(np.float32) if plain else array


def _objects(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The numbers of an array of objects."""
    try:
        found = np.asarray(array.tolist())
    except ValueError:
        found = array
    if found.dtype != object and found.dtype.kind in "biuf":
        return found.astype(np.float32) if found.dtype == np.float64 else found
    rows = array.reshape(len(array), -1) if array.ndim else array.reshape(1, 1)
    wrong = [
        (n, value)
        for n, row in enumerate(rows)
        for value in row
        if not isinstance(value, bool | int | float | np.number | np.bool_)
    ]
    missing = [n for n, value in wrong if is_missing(value)]
    if missing:
        raise _missing(name, len(missing), missing[0], "missing", "a number")
    if not wrong:
        raise _refused(name, f"an array of {array.dtype}", "give one of numbers, by .astype('float32')")
    n, value = wrong[0]
    raise _refused(
        name, f"an array of objects, sample {n} a {type(value).__name__}", "encode them as numbers"
    )


def is_missing(value: Any) -> bool:
    """Whether an object is None, or pandas's NA or NaT."""
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _pandas_column(name: str, series: Any) -> npt.NDArray[Any]:
    """A column of a frame: int64 for integers and bool, float32 for other numbers."""
    what = name if series.name is None else f"{name}, column {series.name!r},"
    absent = series.isna().to_numpy()
    if absent.any():
        first, count = int(np.argmax(absent)), int(absent.sum())
        raise _missing(what, count, first, "missing", ".fillna(value), or leave them out by .dropna()")
    kind = getattr(series.dtype, "kind", "O")
    if kind not in "biuf":
        told = "text" if _holds_text(series) else f"values of dtype {series.dtype}"
        raise _refused(what, told, f"{_ENCODE}, or leave the column out")
    if kind != "f":
        # The array is copied, since the one of pandas may be read-only.
        return np.array(series.to_numpy(dtype=np.int64))
    with np.errstate(over="ignore"):
        array = np.asarray(series.to_numpy(dtype=np.float64).astype(np.float32))
    finite = np.isfinite(array)
    if not finite.all():
        raise UsageError(
            f"dataset: {what} sample {int(np.argmin(finite))} is infinite, or beyond float32: remove it, or "
            "fill it"
        )
    return array


def _holds_text(series: Any) -> bool:
    return len(series) > 0 and isinstance(series.iloc[0], str)


def _missing(name: str, count: int, first: int, how: str, fill: str) -> UsageError:
    told = f"1 value is {how}, in" if count == 1 else f"{count} values are {how}, the first in"
    return UsageError(
        f"dataset: {name} is not whole, {told} sample {first}: fill them with {fill}, or leave samples out"
    )


def _refused(name: str, what: str, remedy: str) -> UsageError:
    return UsageError(f"dataset: {name} is {what}: {remedy}")


def listed(names: Sequence[str], most: int = 10) -> str:
    """Names in a sentence."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")
