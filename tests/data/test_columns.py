"""Columns of numbers: what is missing is refused, with its sample, wherever a mark of it can be."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from offbeat.core.errors import RunError, UsageError
from offbeat.data import Dataset, as_samples, federate, own_data
from offbeat.data.columns import as_tensor


def masked(at: int | None) -> np.ma.MaskedArray[Any, Any]:
    mask = np.zeros((5, 2), dtype=bool)
    if at is not None:
        mask[at, 1] = True
    return np.ma.masked_array(np.arange(10.0).reshape(5, 2), mask)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (masked(3), "1 value is masked, in sample 3"),
        (list(masked(3)), "1 value is masked, in sample 3"),
        ([1.0, None, 3.0, None], "2 values are missing, the first in sample 1"),
        ([[1.0, 2.0], [3.0, None]], "1 value is missing, in sample 1"),
        (np.array([[1.0, None]] * 2, dtype=object), "2 values are missing, the first in sample 0"),
        (np.array([1, pd.NA], dtype=object), "1 value is missing, in sample 1"),
        (pd.Series([1.0, np.nan, 2.0]), "1 value is missing, in sample 1"),
        (pd.Series([1, None, 2], dtype="Int64"), "1 value is missing, in sample 1"),
        (pd.Series([True, None], dtype="boolean"), "1 value is missing, in sample 1"),
        (pd.Series([None, "a"]), "1 value is missing, in sample 0"),
        (pd.DataFrame({"age": [1.0, 2.0], "bp": [3.0, None]}), r"column 'bp', .*in sample 1"),
    ],
)
def test_a_missing_value_is_refused_with_its_sample(value, told):
    with pytest.raises(UsageError, match=told) as caught:
        as_tensor("x", value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (["a", "b"], "x is a list of text: encode it as numbers"),
        (np.array(["a", "b"]), "text: encode it as numbers"),
        (pd.Series(["a", "b"], name="ward"), "column 'ward', is text: encode it as numbers"),
        (pd.Series(["a", "b"], dtype="category"), "encode it as numbers"),
        (pd.DataFrame({"day": pd.to_datetime(["2020-01-01"])}), "column 'day', is values of dtype datetime"),
        (pd.DataFrame({"a": [np.inf, 0.0]}), "column 'a', sample 0 is infinite, or beyond float32"),
        (pd.DataFrame(index=[0, 1]), "a DataFrame without columns"),
        ([[1.0], [1.0, 2.0]], "a list of samples of different shapes: pad them"),
        (np.array([1.0, "a"], dtype=object), "sample 1 a str: encode them as numbers"),
        (torch.eye(3).to_sparse(), "a sparse tensor: give a dense one"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "a jagged tensor"),
        (torch.empty(3, device="meta"), "a meta tensor"),
        (7, "x has no dimension"),
    ],
)
def test_what_holds_no_numbers_is_refused(value, told):
    with pytest.raises(UsageError, match=told) as caught:
        as_tensor("x", value)
    assert "\n" not in str(caught.value)


def test_a_sparse_matrix_is_refused():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(UsageError, match=r"a sparse csr_matrix: give a dense one, such as by \.toarray"):
        as_tensor("x", sparse.csr_matrix(np.eye(3)))


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (masked(None), torch.float64, (5, 2)),
        ([[0.5, 1], [2, 3]], torch.float32, (2, 2)),
        ([1, 2, 3], torch.int64, (3,)),
        ([np.ones(2, np.float64)] * 3, torch.float64, (3, 2)),
        ([torch.ones(2)] * 3, torch.float32, (3, 2)),
        (np.array([1, 2], dtype=object), torch.int64, (2,)),
        (pd.Series([1, 2], dtype="Int64"), torch.int64, (2,)),
        (pd.Series([True, False]), torch.int64, (2,)),
        (pd.Series([0.5, 1.5]), torch.float32, (2,)),
        (pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5], "c": [True, False]}), torch.float32, (2, 3)),
        (pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]), torch.float32, (2, 2)),
        (range(4), torch.int64, (4,)),
    ],
)
def test_numbers_become_a_tensor(value, dtype, shape):
    tensor = as_tensor("x", value)
    assert (tensor.dtype, tuple(tensor.shape)) == (dtype, shape)


@pytest.mark.parametrize(
    ("frame", "dtype", "shape"),
    [
        (pd.DataFrame({"y": [1, 0]}), torch.int64, (2, 1)),
        (pd.DataFrame({"y": [True, False]}), torch.int64, (2, 1)),
        (pd.DataFrame({"y": [0.5, 1.0]}), torch.float32, (2, 1)),
        (pd.DataFrame({"a": [1, 0], "b": [0, 1]}), torch.float32, (2, 2)),
    ],
)
def test_targets_in_a_frame_with_one_column_keep_their_integers(frame, dtype, shape):
    y = Dataset(np.zeros((2, 3), np.float32), frame).y
    assert (y.dtype, tuple(y.shape)) == (dtype, shape)


class Table:
    """A table of polars, which converts itself."""

    __module__ = "polars.dataframe.frame"

    def __init__(self, frame: Any, missing: str = "") -> None:
        self.frame, self.missing = frame, missing

    def to_pandas(self) -> Any:
        if self.missing:
            raise ModuleNotFoundError(self.missing)
        return self.frame


class LazyFrame:
    __module__ = "polars.lazyframe.frame"


def _tables() -> list[Any]:
    frame = pd.DataFrame({"a": [0.5, 1.5], "b": [2, 3], "sick": [0, 1]})
    arrow = pytest.importorskip("pyarrow")
    return [Table(frame), arrow.Table.from_pandas(frame), arrow.RecordBatch.from_pandas(frame)]


@pytest.mark.parametrize("number", range(3))
def test_a_table_of_another_library_is_taken_as_a_frame(number):
    table = _tables()[number]
    for samples in (
        as_samples(table, "sick"),
        own_data((table, table), label="sick").train.subset([0, 1]),
        federate([table], table, label="sick").test,
    ):
        assert (samples.x.tolist(), samples.y.tolist()) == ([[0.5, 2.0], [1.5, 3.0]], [0, 1])
    with pytest.raises(UsageError, match="a DataFrame without label"):
        as_samples(table)


def test_a_pair_of_arrows_columns():
    arrow = pytest.importorskip("pyarrow")
    x, y = arrow.table({"a": [0.5, 1.5], "b": [2.0, 3.0]}), arrow.table({"sick": [0, 1]})
    for pair in ((x, y["sick"]), [x, y["sick"]], {"x": x, "y": y["sick"]}):
        samples = as_samples(pair)
        assert (samples.x.tolist(), samples.y.tolist()) == ([[0.5, 2.0], [1.5, 3.0]], [0, 1])
    assert as_samples((x, y)).y.dtype == torch.int64


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Table(None, "No module named 'pyarrow'"), "No module named 'pyarrow'.: install what is missing"),
        (LazyFrame(), r"a LazyFrame of polars is not read yet: read it, by \.collect\(\)"),
        (np.zeros(2, [("a", "f4")]), r"a structured array: give pandas\.DataFrame\(array\)"),
        (["a", "b"], "classes as 0 to C − 1"),
    ],
)
def test_a_table_that_cannot_be_taken_is_told_what_to_do(value, told):
    with pytest.raises(UsageError, match=told):
        as_samples((value, [0, 1]) if not isinstance(value, Table | LazyFrame) else value)


def test_a_frame_keeps_the_order_of_its_rows_and_columns_whatever_its_index():
    frame = pd.DataFrame({"b": [1.0, 2.0], "a": [3.0, 4.0]}, index=[9, 3])
    assert as_tensor("x", frame).tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_an_array_shares_its_memory():
    array = np.zeros((3, 2), dtype=np.float32)
    assert as_tensor("x", array).data_ptr() == array.ctypes.data


def test_a_dataset_of_a_mapping_checks_each_part():
    with pytest.raises(UsageError, match="dataset: a is not whole"):
        Dataset({"a": [1.0, None], "b": [1.0, 2.0]}, [0, 1])


class MaskedRows:
    """A map-style dataset of which each sample is a masked array."""

    def __len__(self):
        return 5

    def __getitem__(self, row):
        return masked(3)[row], {"label": row % 2}


def test_a_masked_sample_of_a_map_style_dataset_is_refused():
    data = federate(MaskedRows(), None, [range(5)])
    data.train.gather(torch.tensor([0, 4]))  # whole ones are read
    with pytest.raises(RunError, match="sample 3 cannot be read: it is a masked array"):
        data.train.gather(torch.tensor([2, 3]))
