"""Which addresses are taken, and which of them only this machine can reach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.errors import UsageError
from offbeat.net.address import is_loopback, split


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"])
def test_only_this_machine_can_be_there(host: str):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "[::]", "10.0.0.1", "localhost.example", "127.0.0.1.example", "[localhost]"],
)
def test_somebody_else_may_be_there(host: str):
    assert not is_loopback(host)


@given(st.text(max_size=20))
def test_no_address_is_taken_wrongly(address: str):
    try:
        host, port = split(address)
    except UsageError:
        return
    assert address in (f"{host}:{address.rpartition(':')[2]}", f"[{host}]:{address.rpartition(':')[2]}")
    assert 0 <= port <= 65535
