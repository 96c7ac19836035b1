"""What clients do with their time, from journals written by hand and from simulated ones."""

from typing import Any

import pytest

import offbeat as ob
from offbeat.core.client_times import ClientTimes, TimeShares
from offbeat.core.journal import Row
from offbeat.core.learner import NoTraining

LINE = {"line.received": 2.0, "line.trained": 5.0, "line.sent": 1.0, "line.latency": 0.5}
BITS = 8_000


def row(t: float, name: str, task: int | None = None, **data: Any) -> Row:
    client = None if name == "begin" else 0
    return Row(0, t, "event", name, client, task, steps=1, data=data or None)


def shares(*rows: Row, now: float) -> TimeShares | None:
    times = ClientTimes()
    for each in rows:
        times.feed(each)
    return times.shares(0, now)


BEGUN = row(0.0, "joined"), row(100.0, "begin"), row(100.0, "train", 1)


def test_the_parts_of_a_task_and_the_time_between_two() -> None:
    found = shares(*BEGUN, row(108.0, "arrived", 1, **LINE), row(110.0, "train", 2), now=500.0)
    assert found == TimeShares(0.5, 0.2, 0.1, pytest.approx(0.2), 0.0)
    assert found.text == "50/20/10/20/0"


def test_nothing_is_told_before_a_task_has_ended() -> None:
    assert shares(*BEGUN, now=200.0) is None


def test_without_a_line_a_task_is_training_until_its_update_is_held() -> None:
    found = shares(*BEGUN, row(104.0, "ready", 1), row(110.0, "arrived", 1), now=110.0)
    assert found == TimeShares(0.4, 0.0, 0.0, 0.6, 0.0)
    assert shares(*BEGUN, row(104.0, "ready", 1), row(110.0, "discard", 1), now=110.0) == found


def test_a_lost_task_is_neither_training_nor_waiting() -> None:
    for end in ("lost", "left", "discard"):
        found = shares(*BEGUN, row(110.0, end, 1), now=110.0)
        assert found == TimeShares(0.0, 0.0, 0.0, 0.0, 1.0)


def test_who_has_left_does_not_wait() -> None:
    left = shares(*BEGUN, row(108.0, "arrived", 1, **LINE), row(110.0, "left"), now=900.0)
    assert left == TimeShares(0.5, 0.2, 0.1, pytest.approx(0.2), 0.0)


def test_a_task_that_comes_back_counts_once() -> None:
    """It was lost for 10 s, and its client was away until 200: what its line tells fits no more."""
    found = shares(
        *BEGUN, row(110.0, "left", 1), row(200.0, "joined", 1),
        row(204.0, "arrived", 1, **{**LINE, "line.sent": 97.0}), now=210.0,
    )  # fmt: skip
    assert found is not None
    assert found.trained + found.received + found.sent == pytest.approx(4 / 20)
    assert found.lost == pytest.approx(10 / 20)
    assert found.waited == pytest.approx(6 / 20)


@pytest.mark.parametrize("ask", [False, True])
def test_a_simulated_run_divides_its_time(ask: bool) -> None:
    network = ob.Network(latency=0.5, up=BITS / 3, down=BITS / 2)
    algorithm = ob.fedasmu(steps=10) if ask else ob.fedasync(steps=10)
    learner = NoTraining(1, parameters=BITS // 32)
    run = ob.simulate(algorithm, ob.World([1.0], network=network), learner, until=ob.Until(tasks=7))
    times = ClientTimes()
    for each in run.rows():
        times.feed(each)
    found = times.shares(0, run.summary.seconds)
    arrived = run.entries("arrived")
    assert found is not None
    assert found.trained * run.summary.seconds == pytest.approx(70)
    assert found.sent * run.summary.seconds == pytest.approx(7 * 3.5)
    # FedASMU begins tasks at times of its own.
    assert ask or found.waited == pytest.approx(0.0)
    for each in arrived:
        parts = each["line.received"] + each["line.trained"] + each["line.sent"]
        assert parts == pytest.approx(each["seconds"])


def test_a_free_network_adds_nothing_to_a_row() -> None:
    learner = NoTraining(1, parameters=1)
    run = ob.simulate(ob.fedasync(steps=1), ob.World([1.0]), learner, until=ob.Until(tasks=2))
    assert not [name for each in run.entries("arrived") for name in each if name.startswith("line.")]
