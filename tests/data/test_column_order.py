"""Tables are matched by the names of their columns and the labels of their rows, never by position alone."""

import logging
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.data import Dataset, FederatedData, Rows, as_samples, federate, own_data, without_clients

NAMES = ["age", "pressure", "dose"]
ORDER = ["dose", "ill", "age", "pressure"]


def table(samples: int = 4, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(samples, 3)).astype("float32"), columns=NAMES)
    return frame.assign(ill=(frame["age"] > 0).astype(int))


FIRST, SECOND = table(4, 1), table(5, 2)
X = torch.tensor(SECOND[NAMES].to_numpy())


def data_of(*clients: Any, **options: Any) -> FederatedData:
    return federate({f"c{n}": own for n, own in enumerate(clients)}, label="ill", **options)


def test_a_clients_columns_follow_those_of_the_first() -> None:
    data = data_of(FIRST, SECOND[ORDER])
    assert isinstance(data.train, Dataset)
    assert data.columns == data.train.columns == {"x": tuple(NAMES)}
    assert torch.equal(data.train.x[4:], X)
    assert torch.equal(data.train.y, data_of(FIRST, SECOND).train.y)  # type: ignore[union-attr]


@pytest.mark.parametrize("what", ["test", "root"])
def test_columns_of_the_servers_samples_follow_those_of_the_clients(what: str) -> None:
    data = data_of(FIRST, **{what: SECOND[ORDER]})
    assert torch.equal(getattr(data, what).x, X)


def test_columns_of_validation_sets_follow_those_of_the_clients() -> None:
    data = data_of(FIRST, validation={"c0": SECOND[ORDER]})
    assert torch.equal(data.train.x[4:], X)  # type: ignore[union-attr]
    site = own_data((FIRST, SECOND[ORDER]), label="ill")
    assert torch.equal(site.train.x[4:], X)  # type: ignore[union-attr]


def test_targets_of_several_columns_follow_those_of_the_first() -> None:
    pairs = [(own[["age"]], own[["pressure", "dose"]]) for own in (FIRST, SECOND)]
    other = SECOND[["age"]], SECOND[["dose", "pressure"]]
    data = federate([pairs[0], other], pairs[1])
    assert data.columns == {"x": ("age",), "y": ("pressure", "dose")}
    assert torch.equal(data.train.y[4:], data.test.y)  # type: ignore[union-attr]


def test_an_input_of_several_is_a_table_too() -> None:
    image, y = torch.zeros(4, 2, 2), torch.zeros(4)
    first = Dataset({"image": image, "table": FIRST[NAMES]}, y)
    second = Dataset({"table": FIRST[NAMES[::-1]], "image": image}, y)
    data = federate([first, second])
    assert data.columns == {"table": tuple(NAMES)}
    table = data.train.x["table"]  # type: ignore[union-attr]
    assert torch.equal(table[:4], table[4:])


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (
            SECOND.rename(columns={"dose": "weight"}),
            "client 'c1' .* than client 'c0': x lacks dose and has w",
        ),
        (SECOND.drop(columns="dose"), "x lacks dose; give age, pressure, dose, in any order"),
        (SECOND.assign(weight=1.0), "x has weight; give"),
        (SECOND.set_axis(["age", "age", "dose", "ill"], axis=1), "client 'c1': .* several columns 'age'"),
        ((SECOND[["age"]].to_numpy(), SECOND["ill"]), r"x has samples of shape \[1\] without names"),
    ],
)
def test_other_columns_are_refused_with_their_names(other: Any, says: str) -> None:
    first = FIRST[NAMES], FIRST["ill"]
    clients: dict[str, Any] = {"c0": first, "c1": other}
    label = None if isinstance(other, tuple) else "ill"
    if label:
        clients["c0"] = FIRST
    with pytest.raises(UsageError, match=says) as caught:
        federate(clients, label=label)
    assert "\n" not in str(caught.value)


def test_a_test_set_with_a_column_more_is_refused() -> None:
    with pytest.raises(UsageError, match="the test set has other columns than the train set: x has patient;"):
        data_of(FIRST, test=SECOND.assign(patient=1))


def test_columns_without_names_are_taken_by_position_and_the_log_says_so(caplog: Any) -> None:
    arrays = SECOND[NAMES].to_numpy(), SECOND["ill"].to_numpy()
    with caplog.at_level(logging.WARNING):
        data = federate([arrays, (FIRST[NAMES[::-1]], FIRST["ill"])], arrays)
        assert torch.equal(data.train.x[:5], X)  # type: ignore[union-attr]
        assert data.columns == {"x": tuple(NAMES[::-1])}
    assert caplog.messages == [
        "columns without names are taken by position, as if they were named: client 0",
        "columns without names are taken by position, as if they were named: the test set",
    ]
    caplog.clear()
    federate([arrays, arrays], arrays)
    assert not caplog.messages


def test_a_dataset_of_arrays_can_have_names() -> None:
    columns = {"x": ("dose", "age", "pressure")}
    other = Dataset(X[:, [2, 0, 1]], torch.tensor(SECOND["ill"].to_numpy()), columns=columns)
    assert torch.equal(data_of(FIRST, other).train.x[4:], X)  # type: ignore[union-attr]
    assert other.subset([1]).columns == other.columns == columns
    for wrong in ({"x": ("age",)}, {"x": ("age", "age", "dose")}, {"z": ("age",)}):
        with pytest.raises(UsageError, match=r"give each column of \w its own name; \w has"):
            Dataset(X, columns=wrong)
    with pytest.raises(UsageError, match="the columns of x are age, pressure, dose, and not dose, age"):
        Dataset(SECOND[NAMES], columns=columns)


class Polars:
    """A frame as polars and Arrow have them: an array by `numpy.asarray`, with names of its columns."""

    def __init__(self, frame: pd.DataFrame, attribute: str) -> None:
        self._frame = frame
        setattr(self, attribute, list(frame.columns))

    def __len__(self) -> int:
        return len(self._frame)

    def __getitem__(self, row: int) -> Any:
        return self._frame.iloc[row]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._frame.to_numpy(dtype=dtype)


@pytest.mark.parametrize("attribute", ["columns", "column_names"])
def test_frames_of_other_libraries_have_names_too(attribute: str) -> None:
    other = Polars(SECOND[NAMES[::-1]], attribute), SECOND["ill"].to_numpy()
    data = federate([(FIRST[NAMES], FIRST["ill"]), other])
    assert torch.equal(data.train.x[4:], X)  # type: ignore[union-attr]


def test_a_server_has_the_columns_of_its_test_set_or_those_that_it_is_given() -> None:
    tested = as_samples(SECOND, "ill")
    assert without_clients(tested).columns == {"x": tuple(NAMES)}
    swapped = FederatedData(Dataset(torch.zeros(0)), tested, Rows.of([]), columns={"x": tuple(NAMES[::-1])})
    assert torch.equal(swapped.test.x, X.flip(1))  # type: ignore[union-attr]


def test_two_frames_with_the_same_columns_in_any_order_are_two_sets() -> None:
    site = own_data((FIRST[ORDER], SECOND), label="ill")
    assert (site.samples(0), site.held_out.count(0)) == (4, 5)  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="without label"):
        own_data((FIRST[ORDER], SECOND))


@pytest.mark.parametrize("targets", ["ill", ["ill"]])
def test_rows_of_targets_follow_the_index_of_the_inputs(targets: Any) -> None:
    frame = SECOND.sample(frac=1, random_state=1)
    found = as_samples((SECOND[NAMES], frame[targets]))
    assert torch.equal(found.y.flatten(), torch.tensor(SECOND["ill"].to_numpy()))  # type: ignore[union-attr]
    assert torch.equal(found.x, X)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        (SECOND["ill"].set_axis(range(10, 15)), r"the rows of y have other labels than those of x, such as"),
        (SECOND["ill"].set_axis([0, 0, 1, 2, 3]), "the rows of y have labels that stand twice"),
    ],
)
def test_rows_of_other_labels_are_refused(targets: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        as_samples((SECOND[NAMES], targets))
    assert "y.to_numpy()" in str(caught.value)


def test_labels_that_stand_twice_in_the_same_order_are_no_harm() -> None:
    frame = SECOND.set_axis([0, 0, 1, 1, 2])
    assert torch.equal(as_samples((frame[NAMES], frame["ill"])).x, X)  # type: ignore[union-attr]


def test_groups_of_a_frame_in_another_order_find_the_same_rows() -> None:
    frame = pd.concat([FIRST, SECOND], ignore_index=True)
    groups = frame.sort_values("dose").groupby("ill")
    data = federate(frame, None, groups, label="ill")
    for client in range(2):
        rows = data.client_indices(client)
        assert set(data.train.y[rows].tolist()) == {client}  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="groups of a frame whose index is not that of the samples"):
        federate(frame, None, frame.set_index("dose").groupby("ill"), label="ill")
