"""A site's way to its server: an address with a name or credentials, or a function."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import offbeat as ob
from offbeat.net import SiteCredentials
from offbeat.net.client import connector as module
from offbeat.net.client.connector import connector
from offbeat.net.client.reconnecting import OfSite
from offbeat.net.client.store import SiteStore
from tests.net.authority import Authority
from tests.net.support import shares_of_digits, torch_left_alone


async def nowhere() -> Any:
    raise OSError


def test_a_function_connects_by_itself() -> None:
    assert connector(nowhere) is nowhere
    for given in ({"name": "north"}, {"credentials": SiteCredentials(name="north")}, {"proxy": "env"}):
        with pytest.raises(ob.UsageError, match="name and credentials are for an address"):
            connector(nowhere, **given)  # type: ignore[arg-type]


def test_an_address_is_shown_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str | None]] = []

    async def connect(address: str, credentials: SiteCredentials, *_: Any) -> None:
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


def test_whose_connections_they_are(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path, "ours").issue("east")
    for credentials, site in (
        (SiteCredentials(name="north"), "north"),
        (SiteCredentials(token="south:secret"), "south"),
        (SiteCredentials(certificate=certificate, key=key), "east"),
        (SiteCredentials(), None),
    ):
        made = connector("127.0.0.1:1", credentials=credentials)
        assert isinstance(made, OfSite)
        assert made.site == site
    assert not isinstance(nowhere, OfSite)


def test_a_state_of_another_site_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    store = SiteStore(tmp_path, "north")
    store.begin("r1")
    store.close()
    data, _ = shares_of_digits(1, samples=40, test_samples=20)
    way = connector("127.0.0.1:1", "south")
    with torch_left_alone(), pytest.raises(ob.UsageError, match="is of site north, and this is site south"):
        asyncio.run(ob.net.join(way, data[0], state=tmp_path))
