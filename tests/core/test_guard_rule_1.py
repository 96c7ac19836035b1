"""The first rule of the guard: what it refuses, what it takes, and that a majority is right."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import offbeat as ob
from offbeat.core.guard import Guard
from offbeat.core.guard_rule_1 import ENOUGH, OF_A_CLIENT, RECENT, RecentNorms, UpdateGuardRule1
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from tests.sampling import examples

LAYOUT = ob.Layout.flat(4)
MODEL = Model.empty(LAYOUT)


def update(norm: float, shared: torch.Tensor | None = None) -> LocalResult:
    return LocalResult(torch.tensor([norm, 0.0, 0.0, 0.0]), torch.zeros(0, dtype=torch.int64), shared=shared)


def warmed(clients: int = 4, norm: float = 1.0, **options: float) -> UpdateGuardRule1:
    """A guard that has seen two updates of each client, of one step each."""
    guard = UpdateGuardRule1(Guard(**options), clients)
    for client in (*range(clients), *range(clients)):
        assert guard.check(client, 1, update(norm), MODEL) is None
    return guard


def test_the_numbers_by_hand() -> None:
    """Norms 1, 2, 3, 4, 5, 6 of six clients: their upper median is 4, so that 30 times it is 120."""
    guard = UpdateGuardRule1(Guard(), 6)
    for client, norm in enumerate([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]):
        assert guard.check(client, 1, update(norm), MODEL) is None
    assert guard.check(0, 4, update(240.0), MODEL) is None  # n = 240 / √4 = 120
    assert guard.check(1, 1, update(120.5), MODEL) == (  # the median is 4 still
        "the norm of its parameters is 30.1 times the median of the recent ones, more than 30"
    )


@pytest.mark.parametrize("times", [100, 1e3, 1e6, 1e18, 1e30])
def test_an_absurd_update_is_refused_however_finite(times: float) -> None:
    guard = warmed()
    assert guard.check(0, 1, update(times), MODEL) is not None
    assert guard.check(1, 1, update(1.0), MODEL) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused_from_the_first_update_on(value: float) -> None:
    guard = UpdateGuardRule1(Guard(), 1)
    assert guard.check(0, 1, update(value), MODEL) == "the norm of its parameters is not finite"


def test_the_first_updates_are_held_against_the_model() -> None:
    guard = UpdateGuardRule1(Guard(), 4)
    heavy = Model(LAYOUT, torch.tensor([9.0, 0.0, 0.0, 0.0]), MODEL.integers)
    assert guard.check(0, 1, update(1000.0), heavy) is None  # 100 · (1 + 9)
    assert "1.01e+03, is more than 100 times that of the model" in str(
        guard.check(1, 1, update(1010.0), heavy)
    )


def test_buffers_and_the_shared_vector_have_norms_of_their_own() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model = Model.of(module)
    guard, size = UpdateGuardRule1(Guard(), 3), model.layout.parameters

    def result(parameters: float, buffers: float, shared: float) -> LocalResult:
        delta = torch.zeros(model.layout.values)
        delta[0], delta[size] = parameters, buffers
        return LocalResult(delta, torch.zeros(1, dtype=torch.int64), shared=torch.tensor([shared]))

    for client in (0, 1, 2, 0, 1, 2):
        assert guard.check(client, 1, result(1.0, 50.0, 0.01), model) is None
    assert guard.check(0, 1, result(1.0, 1000.0, 0.01), model) is None
    assert "of its buffers is 40 times" in str(guard.check(1, 1, result(1.0, 2000.0, 0.01), model))
    assert "of its shared vector is 100 times" in str(guard.check(2, 1, result(1.0, 50.0, 1.0), model))


def test_one_client_alone_does_not_move_the_median() -> None:
    """However often it comes, and though it comes before the others."""
    guard = UpdateGuardRule1(Guard(), 5)
    for _ in range(20):
        assert guard.check(0, 1, update(99.0), MODEL) is None  # nothing else is known
    for client in (1, 2, 3, 4, 1, 2, 3, 4):
        assert guard.check(client, 1, update(1.0), MODEL) is None
    for _ in range(200):
        assert guard.check(0, 1, update(1e4), MODEL) is not None
    assert guard.check(1, 1, update(1.0), MODEL) is None
    assert guard.diverged is None


def test_most_clients_are_right() -> None:
    """Where the updates of most clients grow a thousandfold, the guard follows within a few rounds."""
    guard = warmed(10)
    refused = [
        guard.check(client, 1, update(1e3), MODEL) is not None for _ in range(6) for client in range(10)
    ]
    assert any(refused[:10])
    assert not any(refused[-30:])


def test_a_run_that_diverges_says_so() -> None:
    guard = warmed(3)
    for number in range(10):
        assert guard.diverged is None
        assert guard.check(number % 3, 1, update(float("nan")), MODEL) is not None
    assert guard.diverged == "the last 10 updates were refused for their size: the training has diverged"


def test_one_client_alone_does_not_make_a_run_diverge() -> None:
    """However fast it is beside the others."""
    guard = warmed(3)
    for _ in range(2000):
        assert guard.check(0, 1, update(float("nan")), MODEL) is not None
    assert guard.diverged is None
    assert guard.check(1, 1, update(float("nan")), MODEL) is not None
    assert "the training has diverged" in str(guard.diverged)


def test_updates_without_change_say_nothing() -> None:
    guard = UpdateGuardRule1(Guard(), 3)
    for client in (0, 1, 2) * 5:
        assert guard.check(client, 1, update(0.0), MODEL) is None
    assert guard.save() == ({}, [])


def naive(entries: list[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """The last `RECENT` of those that are among the last `OF_A_CLIENT` of their client, one by one."""
    kept: list[tuple[int, float]] = []
    for client, norm in entries:
        own = [entry for entry in kept if entry[0] == client]
        if len(own) == OF_A_CLIENT:
            kept.remove(own[0])
        elif len(kept) == RECENT:
            kept.pop(0)
        kept.append((client, norm))
    yield from kept


@examples(50)
@given(st.lists(st.tuples(st.integers(0, 40), st.floats(1e-6, 1e6)), max_size=300), st.integers(1, 50))
def test_the_recent_norms_are_those_of_the_definition(entries: list[tuple[int, float]], clients: int) -> None:
    recent, kept = RecentNorms(), list(naive(entries))
    for client, norm in entries:
        recent.add(client, norm)
    assert list(recent.entries) == kept
    norms, distinct = sorted(norm for _, norm in kept), len({client for client, _ in kept})
    enough = len(kept) >= ENOUGH and distinct >= min(3, clients)
    assert recent.median(clients) == (norms[len(norms) // 2] if enough else None)


def test_a_state_is_saved_and_restored() -> None:
    guard, again = warmed(), UpdateGuardRule1(Guard(), 4)
    guard.check(0, 1, update(1e9), MODEL)
    again.restore(guard.save())
    assert again.save() == guard.save()
    assert again.check(1, 1, update(40.0), MODEL) == guard.check(1, 1, update(40.0), MODEL)


@pytest.mark.parametrize("factor", [1.0, 0.0, float("nan"), float("inf")])
def test_the_factor_is_checked(factor: float) -> None:
    with pytest.raises(ValueError, match="factor"):
        Guard(factor=factor)
