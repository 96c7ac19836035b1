"""What users have as samples: pairs of any columns, frames with a label, mappings of clients."""

import logging
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.data import Dataset, MapDataset, as_samples, federate, own_data
from offbeat.data.convert import is_pair

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 1, 0])
FRAME = pd.DataFrame(X, columns=["a", "b"], index=[5, 3, 1, 0, 2, 4])
SICK = pd.Series(Y, index=FRAME.index, name="sick")
TABLE = FRAME.assign(sick=SICK)
PAIRS: list[Any] = [
    (X, Y),
    (torch.tensor(X), torch.tensor(Y)),
    (FRAME, SICK),
    [FRAME, SICK],
    (X, SICK),
    (X.tolist(), Y.tolist()),
    [X.tolist(), Y.tolist()],
    [X, Y],
    (list(X), list(Y)),
    {"x": X.tolist(), "y": Y.tolist()},
    {"x": FRAME, "y": SICK},
]


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_is_inputs_and_targets(pair):
    samples = as_samples(pair)
    assert isinstance(samples, Dataset)
    assert (samples.x.tolist(), samples.y.tolist()) == (X.tolist(), Y.tolist())


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_is_the_data_of_a_site(pair):
    assert (own_data(pair).samples(0), own_data(pair).held_out) == (6, None)


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_is_that_of_a_client(pair):
    data = federate([pair, pair])
    assert [data.samples(client) for client in range(2)] == [6, 6]


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if not isinstance(pair, dict)])
def test_a_pair_without_parts_is_not_taken_for_two_clients(pair):
    with pytest.raises(UsageError, match="x and y without parts"):
        federate(pair)


@pytest.mark.parametrize(
    "samples",
    [
        [(torch.ones(2), 0), (torch.ones(2), 1)],
        [torch.ones(2), torch.zeros(2)],
        [[1.0, 2.0], [3.0, 4.0]],
        [{"a": 1.0}, {"a": 2.0}],
        [1.0, 2.0],
        ["a", "b"],
    ],
)
def test_a_list_of_samples_is_none(samples):
    assert not is_pair(samples)
    assert isinstance(as_samples(samples), MapDataset)


def test_inputs_by_name_with_targets():
    samples = as_samples(({"a": X, "b": FRAME}, SICK))
    assert isinstance(samples, Dataset)
    assert own_data(({"a": X}, Y)).samples(0) == 6


def test_a_frame_with_its_label():
    data = federate(TABLE, TABLE, [[0, 1], [2, 3, 4, 5]], label="sick")
    x, y = data.train.gather(torch.tensor([1, 0]))
    assert (x.tolist(), y.tolist()) == ([[2.0, 3.0], [0.0, 1.0]], [1, 0])
    assert data.test is not None
    by_client = federate({"north": TABLE[:2], "south": TABLE[2:]}, label="sick")
    assert [by_client.samples(client) for client in range(2)] == [2, 4]
    own = own_data((TABLE[:4], TABLE[4:]), label="sick")
    assert own.held_out is not None
    assert (own.samples(0), own.held_out.count(0)) == (4, 2)


@pytest.mark.parametrize(
    ("data", "options", "told"),
    [
        (TABLE, {}, "a DataFrame without label: name the column of the targets"),
        ((TABLE[:3], TABLE[3:]), {}, r"a tuple \(DataFrame, DataFrame\) is no dataset"),
        (TABLE, {"label": "sic"}, "label = 'sic' is no column of the frame; did you mean \"sick\""),
        ((X, Y), {"label": "sick"}, "label = 'sick' is for a pandas frame"),
        (SICK, {}, "a Series is one column"),
        ((X, Y, Y), {}, r"a tuple \(ndarray, ndarray, ndarray\) is no dataset: a pair is \(x, y\)"),
        ((X, 7), {}, "is no dataset: a pair"),
        ((X, Y[:5]), {}, "x has 6, y has 5 samples"),
        ({"a": X, "b": X}, {}, r"a dict is no dataset: give Dataset\(\{…\}, y\)"),
        ({}, {}, "a dict is no dataset"),
        (torch.utils.data.DataLoader([1, 2]), {}, r"a DataLoader is no dataset: give its \.dataset"),
        ({1, 2}, {}, "no map-style dataset"),
    ],
)
def test_what_is_no_dataset_is_told_what_to_do(data, options, told):
    with pytest.raises(UsageError, match=told) as caught:
        as_samples(data, **options)
    assert "\n" not in str(caught.value)


# ---- the clients ----


WARDS = TABLE.assign(ward=["n", "s", "n", "s", "s", "n"]).groupby("ward")
ROWS = [[0, 2, 5], [1, 3, 4]]


@pytest.mark.parametrize(
    "parts",
    [
        WARDS.indices,
        {"n": ROWS[0], "s": ROWS[1]},
        [set(ROWS[0]), frozenset(ROWS[1])],
        (np.array(rows) for rows in ROWS),
        [torch.tensor(rows) for rows in ROWS],
        np.array(ROWS),
        [(i for i in rows) for rows in ROWS],
        pd.Series({"n": ROWS[0], "s": ROWS[1]}).to_dict().values(),
    ],
)
def test_parts_of_any_kind(parts):
    data = federate((X, Y), None, parts)
    assert [data.client_indices(client).tolist() for client in range(2)] == ROWS


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (np.array([0, 1, 0, 1, 1, 0]), r"parts are one ndarray of numbers: .*np\.flatnonzero"),
        (pd.Series([0, 1]), "parts are one Series of numbers"),
        (torch.tensor([0, 1]), "parts are one Tensor of numbers"),
        ([0, 1], "parts has a int in place of a client's indices"),
        (WARDS.groups, r"a pandas Index, whose labels are no positions of samples: .*\.indices"),
        ({(0, 1), (2, 3)}, "parts as a set have no order"),
        ("iid", "parts = 'iid' is not allowed"),
        (7, "parts = 7 is not allowed"),
        ([[0.5], [1]], "parts of float64 with 1 dimensions"),
        ([np.ones((2, 2), dtype=int)], "with 2 dimensions"),
        ({}, "at least one client"),
    ],
)
def test_parts_that_are_none(parts, told):
    with pytest.raises(UsageError, match=told) as caught:
        federate((X, Y), None, parts)
    assert "\n" not in str(caught.value)


def test_validation_by_the_clients_names():
    sets = {"n": (X[:2], Y[:2]), "s": (X[2:], Y[2:])}
    data = federate(sets, validation={"s": (X, Y), "n": (X[:1], Y[:1])})
    assert data.held_out is not None
    assert [data.held_out.count(client) for client in range(2)] == [1, 6]
    with pytest.raises(UsageError, match="validation by the clients' names"):
        federate(sets, validation={"n": (X, Y), "east": (X, Y)})
    with pytest.raises(UsageError, match="client 's': dataset: x is not whole"):
        federate({"n": (X, Y), "s": ([[None, 1.0]], [0])})


def test_clients_without_samples_are_left_out_aloud(caplog):
    parts = [[0, 1], [], [2], [], [3]]
    with pytest.raises(UsageError, match=r"client 1 of 5 has no samples: leave it out by drop_empty = True"):
        federate((X, Y), None, parts)
    with caplog.at_level(logging.WARNING):
        data = federate(
            (X, Y), None, parts, drop_empty=True, validation=[(X[:k], Y[:k]) for k in range(1, 6)]
        )
    assert (
        "2 of 5 clients have no samples and are left out (1, 3): those that remain are numbered 0 to 2"
        in (caplog.text)
    )
    assert data.held_out is not None
    assert [data.samples(client) for client in range(3)] == [2, 1, 1]
    assert [data.held_out.count(client) for client in range(3)] == [1, 3, 5]
    sets = federate({"n": (X[:0], Y[:0]), "s": (X, Y)}, drop_empty=True)
    assert (sets.clients, sets.samples(0), sets.name_of(0, 2)) == (1, 6, "sample 2 of the client's dataset")
    with pytest.raises(UsageError, match="none of 2 clients has samples"):
        federate((X, Y), None, [[], []], drop_empty=True)
