"""Checks of a site's set-up: each fault has its line, and nothing takes part."""

import asyncio
import time
from pathlib import Path

import pytest

from offbeat.core.errors import OffbeatError, UsageError
from offbeat.net import site_checks as module
from offbeat.net.auth.credentials import ServerCredentials, SiteCredentials
from offbeat.net.auth.tokens import make_token
from offbeat.net.checks import CheckResult, run_checks
from offbeat.net.proxy import Proxy
from offbeat.net.site_checks import SITE_CHECKS, SiteSetUp, check_disk
from offbeat.version import __version__
from tests.net.authority import Authority
from tests.net.connect_proxy import connect_proxy
from tests.net.support import server


def checked(address: str, credentials: SiteCredentials, proxy: Proxy | None = None) -> list[CheckResult]:
    return list(run_checks(SITE_CHECKS, SiteSetUp(address, credentials, proxy)))


def shown(results: list[CheckResult]) -> list[tuple[str, bool]]:
    return [(result.name, result.passed) for result in results]


def test_a_set_up_that_is_right_passes_and_takes_no_part(tmp_path: Path):
    ours = Authority(tmp_path, "ours")
    token = make_token(tmp_path / "tokens.json", "north")

    async def story() -> None:
        given = SiteCredentials(token=token, ca=ours.file)
        tls = ours.issue("server", host="127.0.0.1")
        async with (
            server(ServerCredentials(*tls, tokens=tmp_path / "tokens.json")) as at,
            connect_proxy("anna:secret") as proxy,
        ):
            way = Proxy("127.0.0.1", proxy.port, "anna", "secret")
            found = await asyncio.to_thread(checked, at.address, given, way)
            names = ["address", "proxy", "TLS", "HTTP/2", "access", "version", "clock", "throughput"]
            assert shown(found) == [(name, True) for name in names]
            assert found[5].text == f"server {__version__}, site {__version__}"
            assert at.heard.links == []

    asyncio.run(story())


def test_what_is_wrong_with_the_access_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    token = make_token(tmp_path / "tokens.json", "north")

    async def story() -> None:
        async with server(ServerCredentials(tokens=tmp_path / "tokens.json")) as at:
            wrong = SiteCredentials(token="north:wrong")
            *way, found = await asyncio.to_thread(checked, at.address, wrong)
            assert all(result.passed for result in way)
            assert (found.name, found.passed) == ("access", False)
            assert "the token is not valid" in found.text
            monkeypatch.setattr(module, "time", lambda: time.time() - 3600)
            *_, clock = await asyncio.to_thread(checked, at.address, SiteCredentials(token=token))
            assert (clock.name, clock.passed) == ("clock", False)
            assert "differs from the server's by 60 min: set it" in clock.text

    asyncio.run(story())


def test_the_way_ends_at_the_first_step_that_fails(tmp_path: Path):
    async def story() -> None:
        async with server() as at, connect_proxy(answer=403) as proxy:
            for ca, way, expected in (
                (Authority(tmp_path, "ours").file, None, [("address", True), ("TLS", False)]),
                (None, Proxy("127.0.0.1", proxy.port), [("address", True), ("proxy", False)]),
                (tmp_path / "missing.pem", None, [("TLS", False)]),
            ):
                found = await asyncio.to_thread(checked, at.address, SiteCredentials("north", ca=ca), way)
                assert shown(found) == expected

    asyncio.run(story())


@pytest.mark.parametrize("address", ["https://fl.example.org", "[::1:5", "unix:"])
def test_what_is_no_address_is_wrong_usage(address: str):
    with pytest.raises(UsageError, match="it must be"):
        SiteSetUp(address, SiteCredentials("north"))


def test_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert "GB are free" in check_disk(tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OffbeatError, match="is no directory"):
        check_disk(tmp_path / "file")
    monkeypatch.setattr(module, "LEAST_FREE", 1 << 62)
    with pytest.raises(OffbeatError, match=r"are free at .*: free "):
        check_disk(tmp_path)


def test_the_steps_before_one_that_fails_say_what_was_found():
    async def story() -> None:
        async with server() as at, connect_proxy("anna:secret") as proxy:
            wrong = Proxy("127.0.0.1", proxy.port, "anna", "wrong")
            found = await asyncio.to_thread(checked, at.address, SiteCredentials("a"), wrong)
            assert shown(found) == [("address", True), ("proxy", False)]
            assert found[0].text == f"the proxy 127.0.0.1:{proxy.port} answers"
        closed = Proxy("127.0.0.1", proxy.port)
        (found,) = await asyncio.to_thread(checked, at.address, SiteCredentials("a"), closed)
        assert found.text.endswith("check the address, and whether the proxy runs there (access.proxy)")

    asyncio.run(story())
