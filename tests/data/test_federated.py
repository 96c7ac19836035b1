import dataclasses

import numpy as np
import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.data import Dataset, MapDataset, Source, as_samples, federate, own_data, without_clients


def toy(n: int = 6, classes: int = 3) -> Dataset:
    return Dataset(torch.arange(n * 2, dtype=torch.float32).reshape(n, 2), torch.arange(n) % classes, classes)


def test_dataset_length_shape_and_subset():
    data = toy()
    assert len(data) == 6
    assert data.sample_shape == (2,)
    for indices in ([4, 1], np.array([4, 1]), torch.tensor([4, 1])):
        part = data.subset(indices)
        assert part.x.tolist() == [[8.0, 9.0], [2.0, 3.0]]
        assert part.y.tolist() == [1, 1]
        assert part.classes == 3
    assert len(data.subset([])) == 0


def test_dataset_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        toy().classes = 4


def test_subset_of_read_only_numpy_does_not_warn():
    rows = np.arange(3)
    rows.setflags(write=False)
    assert len(toy().subset(rows)) == 3


@pytest.mark.parametrize("indices", [[6], [-1]])
def test_subset_out_of_range(indices):
    with pytest.raises(UsageError, match="must be 0 to 5"):
        toy().subset(indices)


@pytest.mark.parametrize(
    ("x", "y", "classes", "message"),
    [
        (torch.zeros(2, 1), torch.tensor([[0], [2]]), 2, "0 to classes - 1"),
        (torch.zeros(2, 1), None, 1, "no y"),
        (torch.tensor(1.0), None, None, "x has no dimension"),
        ({"a": torch.zeros(2, 1), "b": torch.zeros(3)}, None, None, "a has 2, b has 3 samples"),
        ({}, None, None, "x is empty"),
        (["a", "b"], None, None, "x is a list of text: encode it as numbers"),
        (torch.zeros(2, 1), torch.zeros(2, dtype=torch.int32), 1, "torch.int64"),
        (torch.zeros(2, 1), torch.zeros(3, dtype=torch.int64), 1, "x has 2, y has 3 samples"),
        (torch.zeros(2, 1), torch.tensor([0, 2]), 2, "0 to classes - 1"),
    ],
)
def test_wrong_tensors_are_refused(x, y, classes, message):
    with pytest.raises(UsageError, match=message):
        Dataset(x, y, classes)


def test_federate_keeps_who_owns_what():
    train, test = toy(), toy(3)
    data = federate(train, test, [np.array([0, 3]), np.array([1]), np.array([2, 4, 5])])
    assert data.clients == 3
    assert [data.samples(i) for i in range(3)] == [2, 1, 3]
    assert [data.client_indices(i).tolist() for i in range(3)] == [[0, 3], [1], [2, 4, 5]]
    assert data.label_counts(0) == [2, 0, 0]
    assert data.label_counts(2) == [0, 1, 2]
    assert data.test is test
    assert data.rows.indices.dtype == data.rows.offsets.dtype == torch.int64
    assert data.client_indices(2).data_ptr() == data.rows.indices[3:].data_ptr()  # a view, not a copy
    assert data.held_out is None


def test_federate_takes_the_test_set_of_a_source():
    source = Source("toy", toy(), toy(3))
    assert federate(source, None, [np.array([0])]).test is source.test
    other = toy(2, 2)
    assert federate(source, other, [np.array([0])]).test is other
    assert federate(toy(), None, [np.array([0])]).test is None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "at least one client"),
        (
            [np.array([0]), np.array([], dtype=np.int64)],
            "client 1 of 2 has no samples: leave it out by drop_e",
        ),
        ([np.array([0, 1]), np.array([1])], "sample index 1 is used 2 times, by clients 0 and 1"),
        ([np.array([2, 2])], "sample index 2 is used 2 times, by clients 0 and 0"),
        ([np.array([0]), np.array([6])], "sample index 6 of client 1: must be 0 to 5"),
        ([np.array([-1])], "sample index -1 of client 0"),
        ([np.array([0.5])], "arrays of integers"),
    ],
)
def test_federate_refuses(parts, message):
    with pytest.raises(UsageError, match=message) as caught:
        federate(toy(), toy(), parts)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("client", [-1, 1])
def test_no_such_client(client):
    data = federate(toy(), toy(), [np.array([0])])
    with pytest.raises(UsageError, match=f"client {client}: must be 0 to 0"):
        data.samples(client)


def test_a_hundred_thousand_clients_stay_small():
    n = 100_000
    train = Dataset(torch.zeros(n, 1), torch.zeros(n, dtype=torch.int64), 1)
    data = federate(train, toy(), np.split(np.arange(n), n))
    assert data.clients == n
    assert data.rows.indices.nbytes + data.rows.offsets.nbytes < 2_000_000


def test_a_sites_data_are_those_of_one_client() -> None:
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    plain, pair = own_data((x, y)), own_data(((x[:4], y[:4]), (x[4:], y[4:])))
    assert (plain.clients, plain.samples(0), plain.held_out) == (1, 6, None)
    fourth = pair.numbered(3)
    assert [fourth.samples(client) for client in range(4)] == [0, 0, 0, 4]
    assert fourth.client_indices(3).tolist() == [0, 1, 2, 3]
    assert fourth.held_out is not None
    assert fourth.held_out.client(3).tolist() == [4, 5]
    assert own_data(pair) is pair
    with pytest.raises(UsageError, match="the data are those of 2 clients: a site has its own alone"):
        federate([(x, y), (x, y)]).numbered(1)
    with pytest.raises(UsageError, match="a str is no dataset"):
        own_data("patients.csv")


def test_a_server_has_no_clients() -> None:
    assert (without_clients().clients, without_clients().test) == (0, None)
    tested = without_clients((torch.zeros(3, 2), torch.zeros(3))).test
    assert tested is not None
    assert len(tested) == 3


def test_what_a_client_holds_out_does_not_depend_on_its_number():
    """So a site trains in no run on what it holds out in another."""
    first = federate(toy(), None, [np.arange(5), np.array([5])], validation=0.4)
    other = federate(toy(), None, [np.array([5]), np.arange(5)], validation=0.4)
    assert first.held_out is not None
    assert other.held_out is not None
    assert torch.equal(first.held_out.client(0), other.held_out.client(1))
    assert first.held_out.count(0) == 2


def test_a_site_holds_out_a_share_of_its_data():
    own = own_data(toy(), 0.4).numbered(3)
    assert own.held_out is not None
    assert [own.samples(client) for client in range(4)] == [0, 0, 0, 4]
    assert [own.held_out.count(client) for client in range(4)] == [0, 0, 0, 2]
    divided = own_data(own_data(toy()), 0.4).held_out
    assert divided is not None
    assert torch.equal(divided.client(0), own.held_out.client(3))
    with pytest.raises(UsageError, match="the data hold out samples already"):
        own_data(own_data(toy(), 0.4), 0.4)


def test_samples_that_make_no_batch_are_refused_in_one_line() -> None:
    lists = [[0.1, 0.2], [1]]  # meant as x and y
    with pytest.raises(UsageError, match=r"samples of a list do not make a batch \(.*\): give .* MapData"):
        as_samples(lists).gather(torch.arange(2))


def test_data_print_a_line_without_samples() -> None:
    x, y = torch.rand(30, 2), torch.arange(30) % 3
    whole = Dataset(x, y, classes=3)
    assert repr(whole) == "<Dataset: x float32 [30, 2], y int64 [30], 3 classes>"
    assert repr(Dataset({"a": x, "b": y})) == "<Dataset: a float32 [30, 2], b int64 [30]>"
    source = Source("mine", whole, whole, np.arange(30) % 2, ("left", "right"))
    data = federate(source, None, [np.arange(10), np.arange(10, 30)])
    assert "rows=<Rows: 30 samples of 2 clients>" in repr(data)
    for text in map(
        repr, (source, data, MapDataset([(0, 1)], labels=torch.zeros(1, dtype=torch.int64), classes=2))
    ):
        assert "tensor(" not in text
        assert "array(" not in text
        assert "\n" not in text


def test_clients_of_a_mapping_have_its_names():
    x, y = torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64)
    by_parts = federate((x, y), None, {"north": [0, 1], "empty": [], "south": [2, 3, 4]}, drop_empty=True)
    assert by_parts.names == ("north", "south")
    by_sets = federate({"north": (x, y), 7: (x[:2], y[:2])})
    assert by_sets.names == ("north", "7")
    assert federate((x, y), None, [[0], [1]]).names == ()
