"""The first k of n, worked out by hand on two parameters (the arithmetic is in the comments)."""

import offbeat as ob
from offbeat.core.commands import Aggregate, Drop, Train
from tests.golden.hand_driven import HandDriven
from tests.golden.near import near

SAMPLES = [1, 2, 3]


def first_round(**options: object) -> HandDriven:
    """Clients 2 and 0 are the first two of three; client 1, with two samples, is late."""
    run = HandDriven(ob.first_of(1, k=2, **options), SAMPLES, [0.0, 0.0])
    assert run.model(1, 2, 4.0, 0.0) == []
    closed = run.model(2, 0, 0.0, 8.0)
    assert [c.client for c in closed if isinstance(c, Train)] == [0, 2]
    # (3·(4, 0) + 1·(0, 8)) / 4
    assert run.w == near(3.0, 2.0)
    return run


def test_the_first_two_of_three_are_averaged_and_the_third_is_dropped():
    run = first_round()
    (dropped,) = run.delta(3, 1, 100.0, 100.0)
    assert isinstance(dropped, Drop)
    assert (dropped.client, dropped.reason) == (1, "it arrived after its round")
    assert run.w == near(3.0, 2.0)
    run.model(4, 0, 3.0, 6.0)
    closed = run.model(5, 2, 7.0, 2.0)
    # (1·(3, 6) + 3·(7, 2)) / 4
    assert run.w == near(6.0, 3.0)
    # Client 1 is asked by the round that begins after its late update.
    assert [c.client for c in closed if isinstance(c, Train)] == [0, 1, 2]


def test_a_late_update_is_averaged_as_a_model_and_does_not_count_toward_k():
    run = first_round(late="next")
    assert run.delta(3, 1, 9.0, 0.0) == []  # w_1 = (0, 0) + (9, 0), of staleness 1
    assert run.model(4, 0, 3.0, 6.0) == []  # the second to arrive, the first of two that close the round
    closed = run.model(5, 2, 7.0, 2.0)
    assert isinstance(closed[0], Aggregate)
    assert closed[0].clients == (1, 0, 2)
    # (2·(9, 0) + 1·(3, 6) + 3·(7, 2)) / 6; client 1 pulls toward (9, 0), by (9, 0) − (3, 2) and not by its Δ
    assert run.w == near(7.0, 2.0)


def test_an_update_that_is_late_by_two_rounds_counts_in_the_round_in_which_it_arrives():
    run = first_round(late="next")
    run.model(3, 0, 3.0, 2.0)
    run.model(4, 2, 3.0, 2.0)
    assert run.w == near(3.0, 2.0)
    run.delta(5, 1, 9.0, 0.0)
    run.model(6, 0, 3.0, 2.0)
    run.model(7, 2, 3.0, 2.0)
    # (2·(9, 0) + 1·(3, 2) + 3·(3, 2)) / 6 = (18 + 3 + 9, 0 + 2 + 6) / 6
    assert run.w == near(5.0, 8 / 6)
    # Two rounds have closed since client 1 was asked.
    assert (run.server.version, run.engine.staleness_sum) == (3, 2)


def test_a_window_closes_a_round_with_what_there_is():
    run = HandDriven(ob.first_of(1, share=1, window=5), SAMPLES, [0.0, 0.0])
    run.model(1, 1, 2.0, 4.0)
    run.model(3, 0, 8.0, 1.0)
    run.timer(6, "window")  # 5 s after the first update
    # (2·(2, 4) + 1·(8, 1)) / 3
    assert run.w == near(4.0, 3.0)


def test_after_the_window_the_least_number_closes_a_round():
    run = HandDriven(ob.first_of(1, share=1, window=5, least=2), SAMPLES, [0.0, 0.0])
    run.model(1, 1, 2.0, 4.0)
    assert run.timer(6, "window") == []
    run.model(8, 0, 8.0, 1.0)
    assert run.w == near(4.0, 3.0)
