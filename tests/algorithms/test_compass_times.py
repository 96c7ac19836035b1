"""The comparisons of FedCompass: times that mean the same, and times that do not."""

import pytest

from offbeat.algorithms.compass_times import RESOLUTION, Instants

TIMES = Instants()
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
    assert TIMES.is_late(now, NOW) is late
    assert TIMES.is_before(now, NOW) is before


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
    assert TIMES.steps_until(end, now, seconds) == steps


def test_a_timer_of_the_instant_of_another_one_has_its_time():
    """Then the one that was set first fires first, however both are rounded."""
    assert TIMES.latest(JUST_BEFORE, 10.0, [LATER, NOW]) == NOW
    assert TIMES.latest(JUST_AFTER, 10.0, [LATER, NOW]) == NOW
    assert TIMES.latest(NOW, 10.0, [LATER, NOW * (1 + 2 * RESOLUTION)]) == NOW
    assert TIMES.latest(JUST_AFTER, NOW * (1 + 1e-14), [NOW]) == JUST_AFTER  # no timer is set for the past
    assert TIMES.timer(NOW) == NOW


def test_equally_fast_clients_are_in_the_order_of_their_numbers():
    seconds = {5: 0.1, 3: 0.1 * (1 + 1e-15), 4: 0.3, 1: 0.1 * (1 - 1e-15), 2: 0.05}
    assert TIMES.fastest_first(seconds, NOW) == [2, 1, 3, 5, 4]
