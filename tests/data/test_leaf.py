"""LEAF's JSON, in the forms of FEMNIST, Shakespeare and CelebA: users are clients, or samples of one site."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.data import Dataset, as_samples, federate, own_data


def written(**users: tuple[list[Any], list[Any]]) -> dict[str, Any]:
    """The content of a file, as it is read."""
    document = {
        "users": list(users), "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }  # fmt: skip
    return dict(json.loads(json.dumps(document)))


FEMNIST = written(
    f0001_41=([[0.5, 1.0, 1.0], [0, 1, 1]], [3, 61]), f0002_07=([[0.25, 0.0, 1.0]], [7]), f0003=([], [])
)
SHAKESPEARE = written(
    THE_TRAGEDY_LEAR=(["nothing ", "othing w"], ["w", "i"]), THE_TRAGEDY_FOOL=(["nuncle\n "], ["\n"])
)


def test_the_users_are_the_clients_in_their_order() -> None:
    data = federate(FEMNIST, FEMNIST, drop_empty=True)
    assert [data.samples(client) for client in range(data.clients)] == [2, 1]
    x, y = data.train.gather(data.client_indices(1))
    assert (x.tolist(), y.tolist()) == ([[0.25, 0.0, 1.0]], [7])
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert data.test is not None
    assert len(data.test) == 3
    with pytest.raises(UsageError, match="client 2 of 3 has no samples: leave it out by drop_empty"):
        federate(FEMNIST)


def test_a_set_may_be_in_several_files_and_the_test_set_each_users_own() -> None:
    files = [written(a=([[1.0]], [0])), written(b=([[2.0], [3.0]], [1, 0]))]
    data = federate(files, files, validation=[*files])
    assert [data.samples(client) for client in range(2)] == [1, 2]
    assert data.held_out is not None
    assert [data.held_out.count(client) for client in range(2)] == [1, 2]
    other = written(b=([[2.0]], [1]), a=([], []))
    held = federate(files, validation=other).held_out
    assert held is not None
    assert [held.count(client) for client in range(2)] == [0, 1]


def test_a_site_has_the_samples_of_all_users() -> None:
    for given in (FEMNIST, [FEMNIST]):
        assert [own_data(given).clients, own_data(given).samples(0)] == [1, 3]
    own = own_data((FEMNIST, FEMNIST))
    assert own.held_out is not None
    assert (own.samples(0), own.held_out.count(0)) == (3, 3)


def test_parts_may_divide_the_samples_of_all_users() -> None:
    assert [federate(FEMNIST, None, [[0, 2], [1]]).samples(client) for client in range(2)] == [2, 1]


class NextCharacter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(128, 4), nn.Linear(4, 128)

    def forward(self, text: Tensor) -> Tensor:
        return self.output(self.embedding(text).mean(1))


def test_characters_become_their_code_points() -> None:
    data = federate(SHAKESPEARE)
    assert isinstance(data.train, Dataset)
    texts = ["".join(map(chr, text)) for text in data.train.x.tolist()]
    assert texts == ["nothing ", "othing w", "nuncle\n "]
    assert "".join(map(chr, data.train.y.tolist())) == "wi\n"
    run = ob.simulate(
        ob.fedavg(steps=1), learner=ob.TorchLearner(NextCharacter, data), until=ob.Until(versions=1),
        evaluate=None,
    )  # fmt: skip
    assert run.summary.versions == 1


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (written(a=(["000001.jpg", "000002.jpg"], [0, 1])), "client 'a': dataset: x is a list of text"),
        (written(a=(["abc", "ab"], ["d", "c"])), "client 'a': dataset: x is a list of text"),
        (written(a=([["4", "a tweet"]], [1])), "client 'a': dataset: x is a list of text"),
        (written(a=([[None, 1.0]], [1])), "client 'a': dataset: x is not whole, 1 value is missing, in"),
        ({**FEMNIST, "num_samples": [2, 2, 0]}, "'f0002_07' .* has 1 samples, and num_samples says 2"),
        ({**FEMNIST, "users": ["f0009"], "num_samples": [1]}, "user 'f0009' .* has no x and y in user_data"),
        ([FEMNIST, FEMNIST], "user 'f0001_41' is twice"),
        (written(), "no datasets: at least one client is needed"),
    ],
)
def test_what_cannot_be_read_names_the_user(data: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        federate(data)
    assert "\n" not in str(caught.value)


def test_a_file_without_users_is_no_test_set() -> None:
    with pytest.raises(UsageError, match="LEAF's data have no users"):
        as_samples(written())
