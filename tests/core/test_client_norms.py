"""Usual norms: one vote for each client, a quorum, and nothing learnt from what was refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.client_norms import OF_A_CLIENT, QUORUM, RECENT, ClientNorms
from tests.sampling import examples


def settled(clients: int, norm: float = 1.0) -> ClientNorms:
    norms = ClientNorms(clients)
    for client in range(min(clients, QUORUM)):
        norms.accept(client, 0, norm)
    assert norms.settled
    return norms


def test_the_numbers_by_hand() -> None:
    """Votes 1, 2, 3, 4, 5, 6 of six clients: their upper median is 4, so that 30 times it is 120."""
    norms = ClientNorms(6)
    for client, norm in enumerate([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]):
        assert not norms.settled
        norms.accept(client, 0, norm)
    assert norms.limit(30, 7.0) == 120


def test_the_vote_of_a_client_is_the_median_of_its_last_norms() -> None:
    norms = ClientNorms(1)
    for norm in (100.0, 1.0, 2.0, 9.0, 8.0, 3.0):  # the last five, in order: 1, 2, 3, 8, 9
        norms.accept(0, 0, norm)
    norms._peaks.clear()
    assert norms.limit(10, 7.0) == 30
    assert OF_A_CLIENT == 5


def test_a_fast_client_has_one_vote() -> None:
    norms = ClientNorms(3)
    for _ in range(100):
        norms.accept(0, 0, 50.0)
    norms.accept(1, 0, 1.0)
    norms.accept(2, 0, 2.0)
    assert norms.limit(30, 7.0) == 60


@pytest.mark.parametrize(
    ("clients", "heard", "limit"),
    [  # first = 7; votes 1, 2, 3, …: the f + 1 largest have an honest one among them
        (1, 0, 7.0), (1, 1, 30.0),
        (2, 1, 7.0), (2, 2, 30.0),
        (3, 1, 7.0), (3, 2, 30.0), (3, 3, 60.0),
        (5, 2, 7.0), (5, 3, 30.0), (5, 4, 60.0), (5, 5, 90.0),
        (100, 4, 7.0), (100, 5, 30.0), (100, 10, 180.0),
    ],
)  # fmt: skip
def test_the_limit_of_the_warm_up_by_hand(clients: int, heard: int, limit: float) -> None:
    norms = ClientNorms(clients)
    for client in range(heard):
        norms.accept(client, 0, 1.0 + client)
    assert norms.limit(30, 7.0) == limit


@examples(100)
@given(
    clients=st.integers(3, 12),
    liars=st.integers(1, 5),
    order=st.randoms(use_true_random=False),
    honest=st.floats(0.1, 10.0),
)
def test_fewer_liars_than_half_never_lead_the_limit(clients, liars, order, honest) -> None:  # type: ignore[no-untyped-def]
    """Whatever is accepted of them, and whoever comes first."""
    norms = ClientNorms(clients)
    liars = min(liars, norms.tolerated)
    first = 100.0
    coming = [client for client in range(clients) for _ in range(4)]
    order.shuffle(coming)
    for client in coming:
        limit = norms.limit(30, first)
        if client < liars:
            norms.accept(client, 0, limit)
        elif honest <= limit:
            norms.accept(client, 0, honest)
        assert norms.limit(30, first) <= max(first, 30 * honest)
    assert norms.limit(30, first) >= 30 * honest


def test_refused_norms_of_a_minority_change_nothing() -> None:
    norms = settled(5)
    for _ in range(1000):
        assert not norms.refuse(0, 0, 1e30)
        assert not norms.refuse(1, 0, 1e30)
    assert norms.limit(30, 7.0) == 30


def test_norms_that_have_grown_for_most_clients_are_the_usual_ones() -> None:
    norms = settled(5)
    assert not norms.refuse(0, 1, 1000.0)
    assert not norms.refuse(1, 1, 1000.0)
    assert norms.refuse(2, 1, 1000.0)
    assert norms.limit(30, 7.0) == 30_000


def test_an_accepted_norm_is_no_refused_one_any_more() -> None:
    norms = settled(5)
    norms.refuse(0, 1, 1000.0)
    norms.refuse(1, 1, 1000.0)
    norms.accept(0, 1, 1.0)
    assert not norms.refuse(2, 1, 1000.0)
    assert norms.limit(30, 7.0) == 30


def test_the_peak_bounds_the_decline() -> None:
    """Nine clients have converged: the tenth's updates of ordinary size are still taken."""
    norms = settled(10)
    for _ in range(5):
        for client in range(9):
            norms.accept(client, 1, 1e-9)
    assert norms.limit(30, 7.0) == 3.0


def test_absurd_norms_of_the_warm_up_are_found_again() -> None:
    norms = ClientNorms(3)
    for task in range(4):
        norms.accept(0, task, 99.0, task)
    norms.accept(0, 4, 5.0, 4)
    norms.accept(1, 4, 1.0, 5)
    norms.accept(2, 4, 2.0, 6)
    assert norms.look_due
    assert set(norms.judge_early(30)) == {0, 1, 2, 3}  # the median of 99, 1 and 2 is 2
    assert set(norms.early) == {4, 5, 6}
    assert norms.limit(30, 7.0) == 60  # the votes are 5, 1 and 2


def test_norms_that_only_later_ones_show_to_be_absurd_are_found_then() -> None:
    """Client 0 poisons the model; the others' updates are large until they have led it back."""
    norms = ClientNorms(3)
    norms.accept(0, 0, 600.0, 0)
    for n, size in enumerate((90.0, 20.0, 5.0, 2.0, 1.0, 1.0, 1.0)):
        for client in (1, 2):
            norms.accept(client, n, size, 2 * n + client)
        if n == 0:
            assert norms.look_due
            assert not norms.judge_early(30)  # the median of 600, 90 and 90 is 90
        assert norms.look_due == (n == 6)  # 15 norms of a quorum of 3
    assert norms.early
    # The votes are 600, 1 and 1: 30 times their median is 30, and three times that of the first ones is 270.
    assert set(norms.judge_early(30)) == {0}
    assert norms.judged
    assert not norms.early
    assert norms.limit(30, 7.0) == 30


def test_an_honest_training_that_converges_fast_is_not_absurd() -> None:
    """All clients begin a thousand times as large as they go on."""
    norms = ClientNorms(3)
    for task in range(15):
        norms.accept(task % 3, task // 3, 1000.0 * (1 + task) if task < 3 else 1.0, task)
        if task in (2, 14):
            assert not norms.judge_early(30)
    assert norms.judged


def test_a_rollback_forgets_what_came_since() -> None:
    norms = settled(4)
    for client in range(4):
        for _ in range(5):
            norms.accept(client, 9, 20.0)
    assert norms.limit(30, 7.0) == 600
    norms.roll_back(5)
    assert norms.limit(30, 7.0) == 30  # the peak until then
    norms.accept(3, 10, 25.0)
    assert norms.limit(30, 7.0) == 30  # one client alone does not change it


def test_it_forgets_the_clients_not_heard_for_longest() -> None:
    norms = ClientNorms(1000)
    for client in range(RECENT + 50):
        norms.accept(client, 0, 1.0 if client < 100 else 4.0)
    assert len(norms.save()["accepted"]) == RECENT
    assert norms.limit(30, 7.0) == 120


def test_it_goes_on_from_a_state() -> None:
    norms = ClientNorms(4)
    norms.accept(0, 0, 3.0, 1)
    norms.accept(1, 2, 2.0, 2)
    norms.refuse(2, 2, 1e5)
    again = ClientNorms.read(4, norms.save())
    for own in (norms, again):
        own.accept(3, 3, 1.0, 3)
        own.accept(2, 3, 5.0, 4)
        assert not own.judge_early(30)
    again = ClientNorms.read(4, norms.save())
    for own in (norms, again):
        own.accept(3, 4, 2.0, 5)
    assert not norms.look_due
    assert norms.save() == again.save()
    assert norms.limit(30, 7.0) == again.limit(30, 7.0)


def test_norms_that_are_judged_twice_are_not_judged_again_after_a_restart() -> None:
    norms = ClientNorms(3)
    for task in range(15):
        norms.accept(task % 3, 0, 1.0, task)
        if norms.look_due:
            assert not norms.judge_early(30)
    assert norms.judged
    again = ClientNorms.read(3, norms.save())
    for task in range(15, 40):
        again.accept(task % 3, 0, 1.0, task)
        assert again.judged
        assert not again.look_due
