"""Unmasking without votes: exact sums, waiting, faults of helpers and clients, crashes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from offbeat.core.errors import RunError
from offbeat.core.privacy.sums import SumGrid
from offbeat.secure.effects import AskHelper
from offbeat.secure.invalid_sums import invalid_sum
from offbeat.secure.messages import UnmaskRefused, UnmaskRequest
from offbeat.secure.unmasking import UnmaskingPhase, UnmaskingTimes
from tests.secure.federation import Answer, Driver, Federation, unmask

DONE, FAILED, ASKING, CHECKING = (
    UnmaskingPhase.DONE, UnmaskingPhase.FAILED, UnmaskingPhase.ASKING, UnmaskingPhase.CHECKING,
)  # fmt: skip
SIZES = (2, 3, 4, 5)  # helpers


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    made.fill(5, np.random.default_rng(0))
    yield made
    for number in range(made.count):
        made.close(number)


def exact(driver: Driver) -> bool:
    total = driver.unmasking.total
    return (
        driver.unmasking.phase is DONE
        and total is not None
        and bool((total == driver.federation.exact).all())
    )


@pytest.mark.parametrize("trial", range(20))
def test_the_sum_is_exact(tmp_path: Path, trial: int) -> None:
    random_trial(tmp_path, trial)


@pytest.mark.thorough
@pytest.mark.parametrize("trial", range(20, 220))
def test_200_sums_are_exact(tmp_path: Path, trial: int) -> None:
    random_trial(tmp_path, trial)


def random_trial(tmp_path: Path, trial: int) -> None:
    rng = np.random.default_rng(trial)
    helpers = SIZES[int(rng.integers(len(SIZES)))]
    updates, bits = int(rng.integers(4, 20)), int(rng.choice([0, 4]))
    options = {"most": updates, "weight_bits": bits, "dominance": 0.6,
               "parameters": int(rng.integers(1, 5000))}  # fmt: skip
    made = Federation(tmp_path, helpers, options)
    made.fill(updates, rng)
    driver = unmask(made)
    assert exact(driver)
    assert driver.unmasking.helpers == tuple(range(helpers))
    asked = [ask for ask in driver.asked if not ask.request.check]
    assert sorted(group for ask in asked for group in ask.request.groups) == list(
        range(len(made.committee.groups))
    )
    assert driver.unmasking.instances == dict.fromkeys(driver.unmasking.helpers, 1)


def test_with_fewer_helpers_it_waits_and_goes_on_when_one_comes(federation: Federation) -> None:
    driver = unmask(federation, away=(1, 2))
    unmasking = driver.unmasking
    assert unmasking.phase is CHECKING
    assert driver.committed == []  # nothing is fixed before enough helpers have checked it
    assert driver.run(unmasking.arrived(1, 4.0)) is CHECKING
    assert driver.run(unmasking.arrived(2, 5.0)) is DONE
    assert exact(driver)


def test_it_says_whom_it_waits_for(federation: Federation) -> None:
    driver = Driver(federation, federation.unmasking())
    unmasking = driver.unmasking
    driver.run(unmasking.begin(range(3), 0.0))
    assert driver.unmasking.phase is DONE

    driver = Driver(federation, federation.unmasking(manifest=driver.committed[0]))
    driver.run(driver.unmasking.begin((), 0.0))
    assert driver.unmasking.deadline == 60.0
    for now in (30.0, 59.0, 60.0, 119.0, 120.0):
        driver.run(driver.unmasking.tick(now))
    begins = "release 12 waits for one of hospital-a, hospital-b, auditor: none has answered for"
    assert driver.warnings == [f"{begins} 60 s", f"{begins} 120 s"]
    driver.run(driver.unmasking.arrived(0, 130.0), 130.0)
    driver.run(driver.unmasking.tick(190.0))
    both = "release 12 waits for one of hospital-b, auditor: neither has answered for 60 s"
    assert driver.warnings[2:] == [both]


def test_it_gives_up_after_a_while_or_never(federation: Federation) -> None:
    for give_up, phase in ((100.0, FAILED), (None, CHECKING)):
        driver = Driver(federation, federation.unmasking(times=UnmaskingTimes(give_up=give_up)))
        driver.run(driver.unmasking.begin((), 0.0))
        assert driver.run(driver.unmasking.tick(99.0)) is CHECKING
        assert driver.run(driver.unmasking.tick(100.0)) is phase
    driver = Driver(federation, federation.unmasking(times=UnmaskingTimes(give_up=100.0)))
    driver.run(driver.unmasking.begin((0,), 0.0))
    driver.run(driver.unmasking.tick(100.0))
    said = "release 12 is given up after 100 s: no answer of hospital-b, auditor"
    assert driver.unmasking.reason == said
    assert driver.unmasking.tick(200.0) == driver.unmasking.arrived(1, 201.0) == []


def silent_when_asked(driver: Driver, helper: int) -> None:
    """A helper that checks, and then says nothing."""

    def answer(number: int, request: UnmaskRequest) -> Answer | None:
        return None if number == helper and not request.check else driver.honest(number, request)

    driver.answer = answer


def test_a_silent_helper_is_waited_for(federation: Federation) -> None:
    driver = Driver(federation, federation.unmasking())
    silent_when_asked(driver, 0)
    driver.run(driver.unmasking.begin(range(3), 0.0))
    driver.run(driver.unmasking.tick(40.0))
    assert driver.unmasking.phase is ASKING
    request = next(ask.request for ask in driver.asked if ask.helper == 0 and not ask.request.check)
    late = federation.helpers[0].answer(request)
    assert driver.run(driver.unmasking.answered(0, late, 50.0)) is DONE
    assert exact(driver)


@pytest.mark.parametrize("trial", range(30))
def test_any_order_of_answers_absences_and_time_ends_in_the_exact_sum(tmp_path: Path, trial: int) -> None:
    """Helpers come, go, are slow and restart; what they were asked before they went is lost."""
    rng = np.random.default_rng(1000 + trial)
    helpers = SIZES[trial % len(SIZES)]
    made = Federation(tmp_path, helpers, {"parameters": 30})
    made.fill(6, rng)
    asked: list[AskHelper] = []

    def later(number: int, request: UnmaskRequest) -> None:
        asked.append(AskHelper(number, request))

    driver = Driver(made, made.unmasking(times=UnmaskingTimes(give_up=None)), later)
    unmasking, now, there = driver.unmasking, 0.0, set(range(helpers))
    driver.run(unmasking.begin(there, now))
    for step in range(400):
        now += float(rng.exponential(10.0))
        helper, event = int(rng.integers(helpers)), rng.choice(["answer", "leave", "come", "time", "restart"])
        if asked and (event == "answer" or step > 200):
            ask = asked.pop(int(rng.integers(len(asked))))
            if ask.helper in there:
                driver.run(unmasking.answered(ask.helper, driver.honest(ask.helper, ask.request), now), now)
        elif event == "leave" and helper in there and step <= 200:
            there.discard(helper)
            asked[:] = [ask for ask in asked if ask.helper != helper]
            driver.run(unmasking.departed(helper, now), now)
        elif event == "come" and helper not in there:
            there.add(helper)
            driver.run(unmasking.arrived(helper, now), now)
        elif event == "restart" and helper not in there:
            made.restart(helper)
        elif event == "time":
            driver.run(unmasking.tick(now), now)
        if unmasking.phase is DONE:
            break
    assert exact(driver)
    assert len(driver.committed) == 1


@pytest.mark.parametrize(
    "lie", [{"total": np.zeros(99, np.uint32)}, {"manifest": bytes(32)}, {"total": np.zeros(0, np.uint32)}]
)
def test_a_helper_that_answers_with_something_else_ends_the_release(
    federation: Federation, lie: dict[str, object]
) -> None:
    driver = Driver(federation, federation.unmasking())

    def answer(number: int, request: UnmaskRequest) -> Answer:
        found = driver.honest(number, request)
        return replace(found, **lie) if number == 1 and not request.check else found

    driver.answer = answer
    driver.run(driver.unmasking.begin(range(3), 0.0))
    assert driver.unmasking.phase is FAILED
    assert driver.unmasking.reason == (
        "release 12 is not used: helper hospital-b has answered with another release or length"
    )
    assert driver.warnings == ["release 12: helper hospital-b has answered with another release or length"]


def test_seeds_that_decrypt_at_first_and_then_do_not_end_the_release(federation: Federation) -> None:
    driver = Driver(federation, federation.unmasking())

    def answer(number: int, request: UnmaskRequest) -> Answer:
        refuses = number == 1 and not request.check
        return UnmaskRefused(12, "no", (101,)) if refuses else driver.honest(number, request)

    driver.answer = answer
    driver.run(driver.unmasking.begin(range(3), 0.0))
    assert driver.unmasking.reason == (
        "release 12 is not used: helper hospital-b says that seeds do not decrypt, which it has not said "
        "before"
    )


def test_a_helper_that_comes_again_is_asked_again(federation: Federation) -> None:
    """What it was asked before it went is lost."""
    driver = Driver(federation, federation.unmasking())
    silent_when_asked(driver, 0)
    driver.run(driver.unmasking.begin(range(3), 0.0))
    driver.answer = None
    assert driver.run(driver.unmasking.departed(0, 1.0)) is ASKING
    assert driver.run(driver.unmasking.arrived(0, 2.0)) is DONE
    assert exact(driver)


def test_a_check_that_is_answered_with_something_else_ends_the_release(tmp_path: Path) -> None:
    federation = Federation(tmp_path, count=2)
    for _ in range(3):
        federation.add(np.ones(federation.committee.parameters, np.int64))
    driver = Driver(federation, federation.unmasking())

    def answer(number: int, request: UnmaskRequest) -> Answer:
        found = driver.honest(number, request)
        return replace(found, manifest=bytes(32)) if number else found

    driver.answer = answer
    driver.run(driver.unmasking.begin(range(2), 0.0))
    assert driver.unmasking.phase is FAILED
    assert driver.unmasking.reason == (
        "release 12 is not used: helper hospital-b has answered with another release or length"
    )


def test_what_nobody_asked_is_ignored(federation: Federation) -> None:
    driver = Driver(federation, federation.unmasking(), lambda number, request: None)
    driver.run(driver.unmasking.begin(range(3), 0.0))
    share = federation.helpers[0].answer(federation.request(0))
    for answer in (share, replace(share, release=11), UnmaskRefused(13, "no")):
        assert driver.unmasking.answered(0, answer, 1.0) == []
    assert driver.unmasking.phase is CHECKING


def test_a_refusal_ends_the_release_with_its_reason(federation: Federation) -> None:
    federation.helpers[2].answer(federation.request(2, release=9))  # before the server was restored
    driver = unmask(federation)
    assert driver.unmasking.phase is FAILED
    assert driver.unmasking.reason == (
        "release 12 is not used: helper auditor refuses it (task 100 was released before, in release 9)"
    )
    assert driver.committed == []


def test_updates_whose_seeds_do_not_decrypt_are_left_out(federation: Federation) -> None:
    spoilt = federation.entries[1]
    federation.entries[1] = replace(spoilt, boxes=(spoilt.boxes[0], b"no box", spoilt.boxes[2]))
    driver = unmask(federation)
    y = federation.vectors.pop(spoilt.task)
    assert driver.unmasking.phase is DONE
    assert driver.unmasking.left_out == (101,)
    manifest = driver.committed[0]
    assert manifest.left_out == (101,)
    assert [task for task, _, _ in manifest.entries] == [100, 102, 103, 104]
    assert len(y) == federation.committee.parameters
    again = unmask(federation, manifest=manifest)  # after a crash
    assert (again.unmasking.total == driver.unmasking.total).all()
    assert not any(ask.request.check for ask in again.asked)


def test_too_few_updates_after_some_are_left_out_are_not_summed(federation: Federation) -> None:
    for place in (0, 1, 2):
        federation.entries[place] = replace(federation.entries[place], boxes=(b"",) * 3)
    driver = unmask(federation)
    assert driver.unmasking.reason == (
        "release 12 is not used: 3 of its updates have seeds that do not decrypt at auditor, hospital-a, "
        "hospital-b, and what is left of it may not be summed (release 12 has the updates of 2 "
        "clients: 3 to 10 are summed together)"
    )
    assert driver.unmasking.phase is FAILED
    assert [helper.instance for helper in federation.helpers] == [0, 0, 0]


def test_without_other_helpers_a_sum_is_not_asked_again(tmp_path: Path) -> None:
    made = Federation(tmp_path, 2)
    made.fill(4, np.random.default_rng(0))
    driver = unmask(made)
    assert exact(driver)
    assert driver.unmasking.again(1.0) is None


def test_a_server_that_was_killed_asks_for_the_same_manifest(federation: Federation) -> None:
    driver = Driver(federation, federation.unmasking())
    silent_when_asked(driver, 1)
    driver.run(driver.unmasking.begin(range(3), 0.0))
    assert driver.unmasking.phase is ASKING  # one helper has answered, and the server dies
    for number in range(3):
        federation.restart(number)
    again = unmask(federation, manifest=driver.committed[0])
    assert exact(again)
    assert {helper.instance for helper in federation.helpers} == {1}
    federation.entries[0] = replace(federation.entries[0], weight=14)
    with pytest.raises(RunError, match="release 12 has other updates than it had"):
        federation.unmasking(manifest=driver.committed[0])


@pytest.mark.parametrize(("most", "bits", "parameters"), [(10, 0, 50), (10, 4, 50), (10, 4, 20_000)])
def test_valid_sums_are_valid_and_wrong_ones_are_not(most: int, bits: int, parameters: int) -> None:
    rng, grid = np.random.default_rng(0), SumGrid(most, bits, 1.0, parameters, True)
    delta = np.zeros(parameters, np.float32)
    delta[0] = 1.0  # all alike: the longest sum
    weights = [grid.q] * most
    total = sum(grid.round(delta, rng.bytes(32)) for _ in weights) * grid.q
    assert invalid_sum(grid, 1, weights, total) is None
    sigma = 0.01 * grid.bound
    for _ in range(50):
        noise = np.rint(sigma * rng.standard_normal(parameters)).astype(np.int64)
        assert invalid_sum(grid, 1, weights, total + noise, sigma) is None
    few = weights[:1]
    assert invalid_sum(grid, 1, few, 2 * most * grid.round(delta, bytes(32)) * grid.q) is not None
    wrong = rng.integers(-(2**31), 2**31, parameters)
    assert invalid_sum(grid, 1, few, wrong) is not None
