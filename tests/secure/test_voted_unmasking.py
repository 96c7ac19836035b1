"""Votes: what is tolerated for each H and T, who is to blame, and no update that two sets of others open."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from offbeat.secure.committee import majority, quorum, tolerated
from offbeat.secure.effects import AskHelper, MaskedEntry
from offbeat.secure.helper import digest_of
from offbeat.secure.messages import UnmaskEntry, UnmaskRefused, UnmaskRequest, UnmaskShare
from offbeat.secure.unmasking import UnmaskingPhase, UnmaskingTimes
from offbeat.secure.voted_unmasking import VotedUnmasking
from tests.sampling import thorough
from tests.secure.federation import Answer, Driver, Federation, unmask

DONE, FAILED, VOTING = UnmaskingPhase.DONE, UnmaskingPhase.FAILED, UnmaskingPhase.VOTING
VOTES = {"colluding": 1, "parameters": 40}
OTHERS = [(h, t, 4) for h in range(3, 8) for t in range(1, h - 1)]
Lie = Callable[[Answer, UnmaskRequest], Answer | None]


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path, 4, VOTES)
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


def refuses(answer: Answer, request: UnmaskRequest) -> Answer:
    return UnmaskRefused(request.release, "no")


def says_undecryptable(answer: Answer, request: UnmaskRequest) -> Answer:
    if request.check or request.votes:
        return UnmaskRefused(request.release, "the seeds of task 101 do not decrypt", (101,))
    return answer


def other_sums(answer: Answer, request: UnmaskRequest) -> Answer:
    """Wrong sums that are as small as those of honest updates, with their digests."""
    if isinstance(answer, UnmaskShare) and answer.sums:
        total = answer.total + np.uint32(1)
        return replace(answer, total=total, sums=(digest_of(total),) * len(answer.sums))
    return answer


def other_body(answer: Answer, request: UnmaskRequest) -> Answer:
    """The right digests, and another sum."""
    if isinstance(answer, UnmaskShare) and len(answer.total):
        return replace(answer, total=answer.total + np.uint32(1))
    return answer


def forged_vote(answer: Answer, request: UnmaskRequest) -> Answer:
    return replace(answer, vote=bytes(64)) if isinstance(answer, UnmaskShare) and answer.vote else answer


def other_manifest(answer: Answer, request: UnmaskRequest) -> Answer:
    return replace(answer, manifest=bytes(32)) if isinstance(answer, UnmaskShare) else answer


def no_sums(answer: Answer, request: UnmaskRequest) -> Answer | None:
    """It votes, and then says nothing."""
    return None if request.votes else answer


LIES: dict[str, Lie] = {
    "refuses": refuses, "undecryptable": says_undecryptable, "sums": other_sums, "body": other_body,
    "vote": forged_vote, "manifest": other_manifest,
}  # fmt: skip


def committee_at(directory: Path, helpers: int, colluding: int) -> Federation:
    directory.mkdir()
    return Federation(directory, helpers, {**VOTES, "colluding": colluding})


def lying(made: Federation, liars: Iterable[int], lie: Lie, **options: object) -> Driver:
    liars = set(liars)
    driver = Driver(made, made.unmasking(**options))

    def answer(number: int, request: UnmaskRequest) -> Answer | None:
        found = driver.honest(number, request)
        return lie(found, request) if number in liars else found

    driver.answer = answer
    driver.run(driver.unmasking.begin(range(made.count), 0.0))
    return driver


# ---- what is tolerated ----


def test_two_quorums_share_an_honest_helper() -> None:
    """T + 1 at least, for every H and T: each helper signs one release of an update."""
    for helpers in range(2, 10):
        for colluding in range(1, helpers):
            votes = quorum(helpers, colluding)
            assert 2 * votes - helpers >= colluding + 1
            assert votes == colluding + majority(helpers, colluding)
            assert 2 * (votes - 1) - helpers < colluding + 1  # with one vote fewer they need not
            lacking = tolerated(helpers, colluding)
            assert lacking == helpers - votes == (helpers - colluding - 1) // 2
            assert helpers - colluding - lacking >= majority(helpers, colluding) > lacking


def test_the_table_of_the_documentation_is_what_is_computed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "secure-aggregation.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d) \|(.+)\|$", text.partition("| H |")[2].partition("\n\n")[0], re.MULTILINE)
    told = {(int(h), t): own.strip() for h, row in rows for t, own in enumerate(row.split("|"), 1)}
    assert told == {
        (h, t): f"{quorum(h, t)}, {tolerated(h, t)}" if t < h else "–"
        for h in range(2, 10) for t in range(1, 9)
    }  # fmt: skip


@pytest.mark.parametrize(("helpers", "colluding", "sets"), [(4, 1, 1), *thorough(*OTHERS)])
def test_as_many_helpers_as_are_tolerated_may_be_away_refuse_or_lie(
    tmp_path: Path, helpers: int, colluding: int, sets: int
) -> None:
    """For some sets of them; with one more a release waits or fails, and no sum is wrong."""
    lacking, number = tolerated(helpers, colluding), 0
    for name, lie in {"away": None, "silent": no_sums, **LIES}.items():
        for faulty in list(combinations(range(helpers), lacking))[:sets]:
            number += 1
            made = committee_at(tmp_path / str(number), helpers, colluding)
            made.fill(5, np.random.default_rng(number))
            driver = unmask(made, faulty) if lie is None else lying(made, faulty, lie)
            if name == "silent":
                driver.run(driver.unmasking.tick(30.0), 30.0)
            assert exact(driver), (name, faulty)
            assert driver.unmasking.left_out == ()
            assert set(driver.unmasking.at_fault) <= set(faulty)
    for name, lie in {"away": None, **LIES}.items():
        faulty = range(lacking + 1)
        number += 1
        made = committee_at(tmp_path / str(number), helpers, colluding)
        made.fill(5, np.random.default_rng(number))
        driver = unmask(made, faulty) if lie is None else lying(made, faulty, lie)
        found = driver.unmasking
        assert found.total is None or exact(driver) or found.left_out == (101,), name
        if name in ("away", "refuses", "vote", "manifest"):
            assert found.total is None, name


@pytest.mark.parametrize("name", LIES)
def test_the_blame_is_on_the_helper(four: Federation, name: str) -> None:
    driver = lying(four, {1}, LIES[name])
    assert exact(driver)
    assert set(driver.unmasking.at_fault) == {1}
    assert driver.unmasking.left_out == ()


def test_a_committee_of_t_plus_2_names_all_who_may_be_wrong(tmp_path: Path) -> None:
    made = Federation(tmp_path, 3, VOTES)
    made.fill(5, np.random.default_rng(0))
    driver = lying(made, {1}, says_undecryptable)
    assert exact(driver) is False
    assert driver.unmasking.left_out == (101,)
    assert driver.unmasking.complaints == {101: ("hospital-b",)}
    assert driver.unmasking.at_fault == {}
    another = committee_at(tmp_path / "another", 3, 1)
    another.fill(5, np.random.default_rng(0))
    assert lying(another, {1}, refuses).unmasking.reason == (
        "release 12 is not used: helper hospital-b refuses it (no)"
    )


def test_sums_that_contradict_each_other_are_not_used(tmp_path: Path) -> None:
    made = Federation(tmp_path, 3, VOTES)
    made.fill(5, np.random.default_rng(0))
    driver = lying(made, {1}, other_sums)
    assert driver.unmasking.phase is FAILED
    assert "contradict each other, and who of them is right cannot be told" in str(driver.unmasking.reason)
    assert "hospital-b" in str(driver.unmasking.reason)


# ---- sites ----


def spoil(made: Federation, place: int, helper: int, at: int) -> None:
    """One byte of a helper's box is another."""
    entry = made.entries[place]
    box = bytearray(entry.boxes[helper])
    box[at] ^= 1
    boxes = tuple(bytes(box) if n == helper else own for n, own in enumerate(entry.boxes))
    made.entries[place] = replace(entry, boxes=boxes)


@pytest.mark.parametrize("helper", range(4))
@pytest.mark.parametrize("at", [0, 79, 80, 200])
def test_a_box_that_does_not_open_is_its_sites_fault(four: Federation, helper: int, at: int) -> None:
    """Also one of one helper, whose complaint the other holders of the group confirm."""
    spoil(four, 1, helper, at)
    driver = unmask(four)
    assert driver.unmasking.phase is DONE
    assert driver.unmasking.left_out == (101,)
    assert driver.unmasking.at_fault == {}
    assert len(driver.unmasking.complaints[101]) >= four.committee.majority


def test_seeds_that_differ_between_helpers_are_their_sites_fault(four: Federation, tmp_path: Path) -> None:
    """Each box opens; two maskings are mixed, so that the holders of a group have different seeds."""
    other = Federation.__new__(Federation)
    other.__dict__.update(four.__dict__, vectors={}, entries=[], exact=four.exact.copy())
    other.add(np.zeros(40, np.int64), task=101, client=1)
    boxes = (other.entries[0].boxes[0], *four.entries[1].boxes[1:])
    four.entries[1] = replace(four.entries[1], boxes=boxes)
    driver = unmask(four)
    assert driver.unmasking.left_out == (101,)
    assert driver.unmasking.at_fault == {}
    assert driver.unmasking.phase is DONE


@pytest.mark.parametrize("name", LIES)
def test_a_helper_that_lies_beside_a_site_that_spoils_its_boxes(four: Federation, name: str) -> None:
    spoil(four, 2, 3, 10)
    driver = lying(four, {1}, LIES[name])
    assert driver.unmasking.phase is DONE
    assert driver.unmasking.left_out == (102,)
    assert set(driver.unmasking.at_fault) <= {1}


def test_a_box_of_another_length_is_a_complaint(four: Federation) -> None:
    four.entries[1] = replace(four.entries[1], boxes=(b"", b"", b"", b""))
    driver = unmask(four)
    assert driver.unmasking.left_out == (101,)
    assert driver.unmasking.phase is DONE


# ---- the server ----


def every_split(honest: int) -> Iterator[tuple[set[int], set[int]]]:
    """Which honest helpers are asked to vote for the first set, and which for the second."""
    for size in range(honest + 1):
        for first in combinations(range(honest), size):
            yield set(first), set(range(honest)) - set(first)


def test_no_way_to_ask_for_votes_gives_two_quorums(tmp_path: Path) -> None:
    """With H = 4 and T = 1: however honest helpers are asked about two sets, one of the sets lacks votes.

    So of the group of seeds that the colluding helper lacks the server has one sum at most: that of one set,
    and no difference of two. The colluding helper votes for whatever it is asked.
    """
    for trial, (first, second) in enumerate(every_split(3)):
        (tmp_path / str(trial)).mkdir()
        made = Federation(tmp_path / str(trial), 4, VOTES)
        made.fill(5, np.random.default_rng(trial))
        everybody, opened = list(made.entries), 0
        for release, entries, asked in ((20, everybody, first), (21, everybody[1:], second)):
            made.entries = entries
            votes = {3: b""}
            for number in sorted(asked):
                answer = made.helpers[number].answer(replace(made.request(number, release), groups=()))
                if isinstance(answer, UnmaskShare):  # it has not helped to release the first set
                    votes[number] = answer.vote
            manifest = made.committee.voted_manifest(
                release, [(e.task, e.client, e.weight) for e in entries],
                {e.task: b"".join(e.boxes) for e in entries},
            )  # fmt: skip
            votes[3] = made.helpers[3]._vote_key.sign(manifest)
            told = tuple(votes.get(number, b"") for number in range(4))
            answers = [
                made.helpers[number].answer(replace(made.request(number, release), groups=(), votes=told))
                for number in range(3)
            ]
            opened += any(isinstance(answer, UnmaskShare) for answer in answers)
        assert opened <= 1, (first, second)
        for number in range(4):
            made.close(number)


def test_a_vote_counts_once_and_for_its_own_release_only(four: Federation) -> None:
    helper, other = four.helpers[0], four.helpers[1]
    shares = [own.answer(replace(four.request(n), groups=())) for n, own in enumerate(four.helpers[:2])]
    votes = [share.vote for share in shares if isinstance(share, UnmaskShare)]
    asks = replace(four.request(0), groups=(1,))
    for told in (
        (votes[0], votes[1], b"", b""),
        (votes[0], votes[1], votes[1], votes[0]),
        (votes[0], votes[1], bytes(64), b"x"),
        (votes[0],) * 9,
    ):
        answer = helper.answer(replace(asks, votes=told))
        assert isinstance(answer, UnmaskRefused)
        assert "votes of helpers: 3 are needed" in answer.reason
    assert other.instance == 1
    third = four.helpers[2].answer(replace(four.request(2), groups=()))
    assert isinstance(third, UnmaskShare)
    answer = helper.answer(replace(asks, votes=(*votes, third.vote, b"")))
    assert isinstance(answer, UnmaskShare)
    assert len(answer.sums) == 3
    other_release = replace(four.request(3, release=13), groups=(1,), votes=(*votes, third.vote, b""))
    assert isinstance(four.helpers[3].answer(other_release), UnmaskRefused)


def test_a_release_with_other_boxes_of_the_same_updates_is_another(four: Federation) -> None:
    four.helpers[0].answer(replace(four.request(0), groups=()))
    spoil(four, 0, 1, 5)
    answer = four.helpers[0].answer(replace(four.request(0), groups=()))
    assert isinstance(answer, UnmaskRefused)
    assert answer.reason == "task 100 was released before, in release 12"


def test_a_helper_votes_after_a_crash_as_before(four: Federation) -> None:
    request = replace(four.request(0), groups=())
    first = four.helpers[0].answer(request)
    again = four.restart(0).answer(request)
    assert isinstance(first, UnmaskShare)
    assert isinstance(again, UnmaskShare)
    assert (first.vote, first.instance) == (again.vote, again.instance) == (first.vote, 1)


# ---- time, crashes ----


def test_a_helper_that_falls_silent_after_its_vote_is_replaced(four: Federation) -> None:
    driver = lying(four, {0}, no_sums)
    assert not exact(driver) or driver.unmasking.phase is DONE
    driver.run(driver.unmasking.tick(30.0), 30.0)
    assert exact(driver)
    assert driver.unmasking.at_fault == {}


@pytest.mark.parametrize("number", range(4))
def test_nobody_waits_for_a_helper_that_is_slow(four: Federation, number: int) -> None:
    """It has not voted when the others have; one that votes and tells no sums is waited for once."""

    def mute(answer: Answer, request: UnmaskRequest) -> Answer | None:
        return answer if request.check else None

    assert exact(lying(four, {number}, mute))
    another = committee_at(four.directory / "another", 4, 1)
    another.fill(5, np.random.default_rng(0))
    driver = lying(another, {number}, no_sums, slow=frozenset({number}))
    assert exact(driver)
    assert driver.unmasking.slow == {number}


def test_it_warns_of_a_slow_helper_once(four: Federation) -> None:
    driver = lying(four, {0}, no_sums)
    driver.run(driver.unmasking.tick(30.0), 30.0)
    assert exact(driver)
    assert driver.unmasking.slow == {0}
    told = "release 12: helper hospital-a has not answered for 30 s: it is asked last from now on"
    assert driver.warnings == [told]


def test_it_says_whom_it_waits_for_and_gives_up(four: Federation) -> None:
    driver = Driver(four, four.unmasking(times=UnmaskingTimes(give_up=100.0)))
    driver.run(driver.unmasking.begin({0, 1}, 0.0))
    assert driver.unmasking.phase is UnmaskingPhase.CHECKING
    driver.run(driver.unmasking.tick(60.0), 60.0)
    assert driver.warnings == ["release 12 waits for one of auditor, d: neither has answered for 60 s"]
    driver.run(driver.unmasking.tick(100.0), 100.0)
    assert driver.unmasking.reason == "release 12 is given up after 100 s: no answer of auditor, d"


@pytest.mark.parametrize("phase", ["voting", "asking"])
def test_a_server_that_was_killed_asks_for_the_same_manifest(four: Federation, phase: str) -> None:
    def mute(answer: Answer, request: UnmaskRequest) -> Answer | None:
        silent = bool(request.votes) if phase == "asking" else not request.check
        return None if silent else answer

    driver = lying(four, range(4), mute)
    assert driver.unmasking.phase.value == phase
    for number in range(4):
        four.restart(number)
    again = unmask(four, manifest=driver.committed[0])
    assert exact(again)
    assert {helper.instance for helper in four.helpers} == {1}


@pytest.mark.parametrize("trial", [*range(6), *thorough(*range(6, 20))])
def test_any_order_of_answers_absences_and_time_ends_in_the_exact_sum(tmp_path: Path, trial: int) -> None:
    """Helpers come, go, are slow and restart; one of them lies; blame is on nobody else."""
    rng = np.random.default_rng(500 + trial)
    made = Federation(tmp_path, 4, VOTES)
    made.fill(6, rng)
    asked: list[AskHelper] = []
    liar, lie = int(rng.integers(4)), list(LIES.values())[trial % len(LIES)]

    def later(number: int, request: UnmaskRequest) -> None:
        asked.append(AskHelper(number, request))

    driver = Driver(made, made.unmasking(times=UnmaskingTimes(give_up=None)), later)
    unmasking, now, there = driver.unmasking, 0.0, set(range(4))
    driver.run(unmasking.begin(there, now))
    for step in range(600):
        now += float(rng.exponential(10.0))
        helper, event = int(rng.integers(4)), rng.choice(["answer", "leave", "come", "time", "restart"])
        if asked and (event == "answer" or step > 200):
            ask = asked.pop(int(rng.integers(len(asked))))
            if ask.helper in there:
                found: Answer | None = driver.honest(ask.helper, ask.request)
                found = lie(found, ask.request) if ask.helper == liar and found is not None else found
                if found is not None:
                    driver.run(unmasking.answered(ask.helper, found, now), now)
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
    assert exact(driver), (unmasking.phase, unmasking.reason)
    assert set(unmasking.at_fault) <= {liar}
    assert len(driver.committed) == 1


def test_the_entries_are_what_helpers_are_told(four: Federation) -> None:
    """Each helper gets the boxes of all of them: it checks those of its groups, and opens its own alone."""
    driver = unmask(four)
    sizes = {len(entry.box) for ask in driver.asked for entry in ask.request.entries}
    assert sizes == {4 * four.committee.box_bytes} == {960}
    assert isinstance(driver.unmasking, VotedUnmasking)
    assert isinstance(four.entries[0], MaskedEntry)
    assert isinstance(driver.asked[0].request.entries[0], UnmaskEntry)
