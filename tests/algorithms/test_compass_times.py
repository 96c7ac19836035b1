"""The comparisons of FedCompass: times that mean the same, and times that do not."""

import pytest

import offbeat as ob
from offbeat.algorithms.compass_times import RESOLUTION, fastest_first, is_after, latest_time, steps_until

NOW = 1000.0
LATER, SAME, JUST_BEFORE, JUST_AFTER = 1.001 * NOW, NOW, NOW * (1 - 1e-13), NOW * (1 + 1e-13)


@pytest.mark.parametrize(
    ("now", "late", "before"),
    [
        (SAME, False, False),
        (JUST_BEFORE, False, False),
        (JUST_AFTER, False, False),
        (NOW * (1 - 2 * RESOLUTION), False, True),
        (NOW * (1 + 2 * RESOLUTION), True, False),
    ],
)
def test_a_time_of_the_same_instant_is_neither_late_nor_before(now: float, late: bool, before: bool):
    assert is_after(now, NOW) is late
    assert is_after(NOW, now) is before


@pytest.mark.parametrize(
    ("end", "now", "seconds", "steps"),
    [
        (0.6, 0.0, 0.2, 3),  # 0.6 / 0.2 = 2.9999999999999996
        (720.0, 120.0, 6.0, 100),
        (719.9, 120.0, 6.0, 99),
        (7.3, 0.1, 2.4, 3),
        (1e7 + 0.3, 1e7, 0.1, 3),  # of a time this late the last digits of a second are lost
        (5.0, 7.0, 3.0, -1),
        (5.0, 5.0, 3.0, 0),
    ],
)
def test_steps_that_end_at_the_instant_fit(end: float, now: float, seconds: float, steps: int):
    assert steps_until(end, now, seconds) == steps


def test_a_timer_of_the_instant_of_another_one_has_its_time():
    """Then the one that was set first fires first, however both are rounded."""
    assert latest_time(JUST_BEFORE, 10.0, [LATER, NOW]) == NOW
    assert latest_time(JUST_AFTER, 10.0, [LATER, NOW]) == NOW
    assert latest_time(NOW, 10.0, [LATER, NOW * (1 + 2 * RESOLUTION)]) == NOW
    assert latest_time(JUST_AFTER, NOW * (1 + 1e-14), [NOW]) == JUST_AFTER  # no timer is set for the past


def test_equally_fast_clients_are_in_the_order_of_their_numbers():
    seconds = {5: 0.1, 3: 0.1 * (1 + 1e-15), 4: 0.3, 1: 0.1 * (1 - 1e-15), 2: 0.05}
    assert fastest_first(seconds, NOW) == [2, 1, 3, 5, 4]


def test_a_schedule_inside_of_others_keeps_its_resolution():
    assert ob.compose(ob.fedcompass(), requests=ob.fedasmu()).schedule.resolution == RESOLUTION
    assert ob.compose(ob.fedbuff(2), requests=ob.fedasmu()).schedule.resolution == 0.0
