"""Failed logins are limited for each address, but not where a login has succeeded."""

from offbeat.net.failed_logins import ADDRESSES, MOST, SECONDS, FailedLogins


class Seconds:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_address_that_fails_too_often_waits_and_may_try_again() -> None:
    clock = Seconds()
    logins = FailedLogins(clock)
    for k in range(MOST):
        assert logins.refusal("10.0.0.1") is None
        clock.now = 1000.0 + k
        logins.failed("10.0.0.1")
    assert logins.refusal("10.0.0.1") == f"{MOST} logins from 10.0.0.1 have failed: try again in 41 s"
    assert logins.refusal("10.0.0.2") is None
    clock.now = 1000.0 + SECONDS
    assert logins.refusal("10.0.0.1") is None  # the first failure is old
    logins.failed("10.0.0.1")
    assert logins.refusal("10.0.0.1") is not None


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    logins = FailedLogins()
    for k in range(MOST):
        logins.failed(f"2001:db8::{k:x}")
    assert logins.refusal("2001:db8::ffff") is not None
    assert logins.refusal("2001:db8:0:1::1") is None


def test_where_a_site_has_logged_in_others_cannot_lock_it_out() -> None:
    logins = FailedLogins()
    for _ in range(MOST):
        logins.failed("10.0.0.1")
    logins.succeeded("10.0.0.1")
    for _ in range(5 * MOST):
        logins.failed("10.0.0.1")
    assert logins.refusal("10.0.0.1") is None


def test_a_bounded_number_of_addresses_is_remembered() -> None:
    logins = FailedLogins()
    for k in range(ADDRESSES + 100):
        logins.failed(f"10.{k >> 16}.{k >> 8 & 255}.{k & 255}")
    assert len(logins._times) == ADDRESSES
