"""Which addresses are taken, and which of them only this machine can reach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.errors import UsageError
from offbeat.net.address import host_of, is_local, is_loopback, network, split

LOOPBACK = [
    "127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST", "::1", "[::1]", "0:0::1", "::ffff:127.0.0.1",
    "[::ffff:7f00:1]",
]  # fmt: skip
OTHERS = [
    "", "0.0.0.0", "::", "[::]", "10.0.0.1", "::ffff:10.0.0.1", "localhost.example", "127.0.0.1.example",
    "[localhost]", "[127.0.0.1]", "[::1].example", "[::1", "::1]", "[[::1]]", "::1.example", "[::1]:80",
    "localhost.", "127.0.0.1.", "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "127.000.0.1",
    "localhost@example", "anna@localhost", "localhost:80", "::1%lo", "[::1%25example]", "localhost ",
    " localhost", "localhost\n", "localhost#example", "localhost/example", "localhost\\example", "unix:/a",
    "\u2170ocalhost", "local\u00adhost", "ⓛocalhost", "１27.0.0.1",
]  # fmt: skip


@pytest.mark.parametrize("host", LOOPBACK)
def test_only_this_machine_can_be_there(host: str):
    assert is_loopback(host)


@pytest.mark.parametrize("host", OTHERS)
def test_somebody_else_may_be_there(host: str):
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("localhost", "localhost"),
        ("localhost:80", "localhost"),
        ("localhost:", "localhost"),
        ("[::1]", "::1"),
        ("[::1]:8080", "::1"),
        ("[::1].example", ""),
        ("[::1].example:80", ""),
        ("[::1]example:80", ""),
        ("[::1]:80:example", ""),
        ("[localhost]", ""),
        ("localhost.example:80", "localhost.example"),
        ("localhost:80.example", ""),
        ("localhost:80:example", ""),
        ("localhost@example", ""),
        ("::1", ""),
        ("", ""),
        (":80", ""),
        ("localhost\n", ""),
    ],
)
def test_the_host_of_an_authority_is_all_of_it(authority: str, host: str):
    assert host_of(authority) == host


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("unix:/run/a.sock", True), ("localhost:1", True), ("LocalHost:1", True), ("[::1]:1", True),
        ("[::ffff:127.0.0.1]:1", True), ("localhost.example:1", False), ("127.1:1", False),
        ("0.0.0.0:1", False), ("[::]:1", False), ("localhost.:1", False), ("localhost@example:1", False),
        ("unix-abstract:1", False),
    ],
)  # fmt: skip
def test_an_address_for_sites_is_local_or_not(address: str, local: bool):
    assert is_local(address) == local


@pytest.mark.parametrize(
    "address", ["[::1].example:1", "[::1].x]:1", "[localhost]:1", "[127.0.0.1]:1", "::1:1", "UNIX:/a", "[]:1"]
)
def test_a_host_in_brackets_is_an_address_of_ipv6(address: str):
    with pytest.raises(UsageError, match=r"it must be HOST:PORT or \[IPV6\]:PORT"):
        is_local(address)


def test_an_ipv4_address_within_ipv6_is_one_by_itself():
    """Else all of them would count as one network, and the failed logins of one as those of all."""
    assert network("::ffff:192.0.2.1") == "192.0.2.1"
    assert network("fe80::1%eth0") == network("fe80::2") == "fe80::/64"


@given(st.text(max_size=20))
def test_no_address_is_taken_wrongly(address: str):
    try:
        host, port = split(address)
    except UsageError:
        return
    assert address in (f"{host}:{address.rpartition(':')[2]}", f"[{host}]:{address.rpartition(':')[2]}")
    assert 0 <= port <= 65535
