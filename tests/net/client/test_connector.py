"""A site's way to its server: an address with a name or credentials, or a function."""

import asyncio
from typing import Any

import pytest

import offbeat as ob
from offbeat.net import SiteCredentials
from offbeat.net.client import connector as module
from offbeat.net.client.connector import connector


async def nowhere() -> Any:
    raise OSError


def test_a_function_connects_by_itself() -> None:
    assert connector(nowhere) is nowhere
    for given in ({"name": "north"}, {"credentials": SiteCredentials(name="north")}, {"proxy": "env"}):
        with pytest.raises(ob.UsageError, match="name and credentials are for an address"):
            connector(nowhere, **given)  # type: ignore[arg-type]


def test_an_address_is_shown_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str | None]] = []

    async def connect(address: str, credentials: SiteCredentials, _: Any, proxy: Any) -> None:
        seen.append((address, credentials.name))

    monkeypatch.setattr(module, "connect", connect)
    given = (
        ("north", None),
        (None, SiteCredentials(name="south")),
        ("north", SiteCredentials(name="north")),
        (None, None),
    )
    for name, credentials in given:
        asyncio.run(connector("host:1", name, credentials)())  # type: ignore[arg-type]
    assert seen == [("host:1", name) for name in ("north", "south", "north", None)]


def test_two_names() -> None:
    with pytest.raises(ob.UsageError, match="name = 'north', and the credentials are of 'south'"):
        connector("host:1", "north", SiteCredentials(name="south"))
