"""What clients keep: found again whatever the limit, counted, spilled oldest first, saved and taken up."""

import gc
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from offbeat.core.errors import DamageError, RunError
from offbeat.core.layout import Layout
from offbeat.core.learner import PERSONAL
from offbeat.runs.client_states import OWN, ClientStates, write_own
from tests.sampling import examples


def state(value: float, size: int = 2) -> dict[str, Tensor]:
    """A state of 4 · size bytes."""
    return {"c": torch.full((size,), float(value))}


def value(states: ClientStates, client: int) -> float | None:
    found = states.get(client)
    return float(found["c"][0]) if found else None


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_client_has_nothing_before_its_first_state(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    assert states.get(3) == {}
    assert (len(states), states.nbytes, states.bytes_in_memory) == (0, 0, 0)
    states.put(3, {})
    assert (len(states), states.save()) == (0, {})
    assert files(tmp_path) == []


def test_without_a_limit_all_stays_in_memory(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    for client in range(10):
        states.put(client, state(client))
    assert [value(states, client) for client in range(10)] == list(range(10))
    assert (states.nbytes, states.bytes_in_memory, files(tmp_path)) == (80, 80, [])


def test_the_least_recently_used_go_to_files(tmp_path: Path) -> None:
    states = ClientStates(tmp_path, limit=16)
    states.put(0, state(0))
    states.put(1, state(1))
    assert value(states, 0) == 0  # used: client 1 is now the oldest
    states.put(2, state(2))
    assert (states.bytes_in_memory, files(tmp_path)) == (16, ["client-0.safetensors"])
    (tmp_path / "client-0.safetensors").rename(tmp_path / "aside")
    assert (value(states, 0), value(states, 2)) == (0, 2)
    with pytest.raises(DamageError, match=r"client-0\.safetensors is missing; lost: what a client keeps"):
        states.get(1)


def test_a_state_larger_than_the_limit_is_not_kept_in_memory(tmp_path: Path) -> None:
    for limit in (0, 7):
        states = ClientStates(tmp_path, limit)
        states.put(0, state(5))
        assert (states.bytes_in_memory, states.nbytes, value(states, 0)) == (0, 8, 5)


def test_bytes_follow_what_is_put(tmp_path: Path) -> None:
    states = ClientStates(tmp_path, limit=100)
    states.put(0, state(1, size=4))
    states.put(1, state(1, size=10))
    assert (states.nbytes, states.bytes_in_memory) == (56, 56)
    states.put(0, state(2, size=1))
    assert (states.nbytes, states.bytes_in_memory, states.sizes()) == (44, 44, {0: 4, 1: 40})
    states.put(1, {})
    assert (states.nbytes, states.get(1), len(states)) == (4, {}, 2)
    states.put(2, {"a": torch.zeros(3, dtype=torch.float64), "b": torch.zeros(2, dtype=torch.int64)})
    assert states.sizes()[2] == 40


def test_changing_what_get_gave_changes_nothing() -> None:
    states = ClientStates()
    states.put(0, state(1))
    states.get(0)["more"] = torch.zeros(1)
    assert list(states.get(0)) == ["c"]


def test_saved_states_are_taken_up_without_being_read(tmp_path: Path) -> None:
    states = ClientStates(tmp_path, limit=16)
    for client in range(4):
        states.put(client, state(client))
    names, sizes = states.save(), states.sizes()
    assert sorted(names) == [0, 1, 2, 3]
    assert set(names.values()) == set(files(tmp_path))

    again = ClientStates(tmp_path, limit=16)
    again.restore(names, sizes)
    assert (again.bytes_in_memory, again.nbytes, len(again)) == (0, 32, 4)
    assert [value(again, client) for client in range(4)] == [0, 1, 2, 3]
    before = files(tmp_path)
    again.put(1, state(9))
    named = again.save()
    assert named[1] not in before  # what the checkpoint names is never written over
    assert (value(again, 1), {c: named[c] for c in (0, 2, 3)}) == (9, {c: names[c] for c in (0, 2, 3)})


def test_a_state_that_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    states.put(0, state(0))
    states.put(1, state(1))
    first = states.save()
    states.put(1, state(2))
    second = states.save()
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert len(files(tmp_path)) == 3  # the checkpoint deletes what is not named any more


@pytest.mark.thorough
def test_files_without_a_directory_are_temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    states = ClientStates(limit=8)
    assert files(tmp_path) == []
    for round_ in range(5):
        for client in range(3):
            states.put(client, state(10 * round_ + client))
    assert [value(states, client) for client in range(3)] == [40, 41, 42]
    (place,) = tmp_path.iterdir()
    assert len(files(place)) == 2  # old ones are not kept, as no checkpoint can want them
    del states
    gc.collect()
    assert files(tmp_path) == []


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    states = ClientStates(tmp_path / "nowhere", limit=0)
    with pytest.raises(RunError, match=r"cannot write a client's state to .*nowhere"):
        states.put(0, state(0))


Moves = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 4), st.integers(0, 5)),
        st.tuples(st.just("get"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("save"), st.just(0), st.just(0)),
        st.tuples(st.just("again"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@examples(60)
@given(moves=Moves, limit=st.one_of(st.none(), st.integers(0, 60)), temporary=st.booleans())
def test_it_is_a_dictionary(moves: list[tuple[str, int, int]], limit: int | None, temporary: bool) -> None:
    """Whatever is put, got, saved and taken up: as a dict has it, within the limit, and as saved."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        states = ClientStates(None if temporary else directory, limit)
        model: dict[int, dict[str, Tensor]] = {}
        saved: tuple[dict[int, str], dict[int, int], dict[int, dict[str, Tensor]]] = {}, {}, {}
        for number, (move, client, size) in enumerate(moves):
            if move == "put":
                new = state(number, size) if size else {}
                states.put(client, new)
                if new or client in model:
                    model[client] = new
            elif move == "get":
                same(states.get(client), model.get(client, {}))
            elif move == "save" and not temporary:
                saved = states.save(), states.sizes(), dict(model)
                for path in directory.iterdir():  # as the checkpoint does
                    if path.name not in saved[0].values():
                        path.unlink()
            elif move == "again" and not temporary:
                states = ClientStates(directory, limit)
                states.restore(*saved[:2])
                model = dict(saved[2])
            sizes = {c: sum(t.nbytes for t in s.values()) for c, s in model.items()}
            assert states.sizes() == sizes
            assert (states.nbytes, len(states)) == (sum(sizes.values()), len(model))
            assert limit is None or states.bytes_in_memory <= limit
        for client in range(5):
            same(states.get(client), model.get(client, {}))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_folder_of_clients_that_is_a_link_is_not_written(tmp_path: Path) -> None:
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    run.mkdir()
    (run / OWN).symlink_to(elsewhere)
    states = ClientStates()
    layout = Layout.of(torch.nn.Linear(2, 1), ("bias",))
    states.put(0, {f"{PERSONAL}bias": torch.ones(1)})
    with pytest.raises(RunError, match="clients is a link: delete it"):
        write_own(run, states, layout)
    assert not any(elsewhere.iterdir())
