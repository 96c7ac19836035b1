"""Of several processes of a site, which one stays."""

import pytest

pytest.importorskip("grpc")

from offbeat.net.grpc.incumbents import WITHIN, Holder, Incumbents

FIRST, SECOND = Holder("first"), Holder("second")


class Times:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def kind(found: object) -> str | None:
    return getattr(found, "kind", None)


def test_two_processes_replace_each_other_until_the_first_has_come_back_twice() -> None:
    known = Incumbents(Times())
    told = [
        kind(known.refusal("north", older, newer))
        for older, newer in [(FIRST, SECOND), (SECOND, FIRST)] * 2 + [(FIRST, SECOND)] * 3
    ]
    assert told == [None] * 4 + ["duplicate"] * 3
    assert kind(known.refusal("east", FIRST, SECOND)) is None


def test_a_process_that_replaces_its_own_connection_is_no_rival() -> None:
    known = Incumbents(Times())
    for _ in range(20):
        assert known.refusal("north", FIRST, FIRST) is None
    assert not known._rivalries


def test_a_site_that_is_started_again_and_again_replaces_what_has_died() -> None:
    """Its machine loses power, so that the server believes in each connection for a while."""
    clock = Times()
    known = Incumbents(clock)
    for number in range(50):
        clock.now += 1.0
        assert known.refusal("north", Holder(f"p{number}"), Holder(f"p{number + 1}")) is None
    clock.now += WITHIN + 1
    known.refusal("east", FIRST, SECOND)
    assert set(known._rivalries) == {"east"}, "what is long ago is forgotten"


def test_a_rivalry_of_long_ago_decides_nothing() -> None:
    clock = Times()
    known = Incumbents(clock)
    for older, newer in [(FIRST, SECOND), (SECOND, FIRST)] * 2:
        known.refusal("north", older, newer)
    clock.now += WITHIN + 1
    assert known.refusal("north", FIRST, SECOND) is None


def test_the_key_of_the_token_counts_more_than_who_was_first() -> None:
    known, keyed = Incumbents(Times()), Holder("rightful", keyed=True)
    for _ in range(10):
        assert kind(known.refusal("north", FIRST, keyed)) is None
        assert kind(known.refusal("north", keyed, FIRST)) == "without key"
    assert kind(known.refusal("east", keyed, Holder("other", keyed=True))) is None
