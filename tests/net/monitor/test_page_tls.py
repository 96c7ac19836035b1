"""The live page's certificate on real sockets: it is the one that the files hold, without a restart."""

import asyncio
import shutil
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from offbeat.core.errors import UsageError
from offbeat.net.auth.tls import page_tls
from offbeat.net.monitor.http import MonitorAddress, Watched, dashboard
from tests.net.authority import Authority


def nothing() -> Any:
    raise AssertionError("no snapshot is asked for")


def trusting(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.file)
    return context


async def look(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(url + "page.css") as answer:
        assert answer.status == 200
        await answer.read()


async def serves(url: str, authority: Authority, *others: Authority) -> None:
    """A new connection is shown this authority's certificate."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting(authority))) as session:
        await look(session, url)
    for other in others:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting(other))) as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await look(session, url)


def test_a_certificate_that_is_replaced_is_shown_to_new_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Good files, half a change, damaged ones, good ones again; a connection that is open goes on."""
    first, second, third = (Authority(tmp_path, name) for name in ("first", "second", "third"))
    certificate, key = tmp_path / "page.pem", tmp_path / "page.key"

    def install(pair: tuple[Path, Path]) -> None:
        for source, target in zip(pair, (certificate, key), strict=True):
            shutil.copy(source, target.with_suffix(".new"))
            target.with_suffix(".new").replace(target)

    def errors() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]

    async def story() -> None:
        install(first.issue("page", host="127.0.0.1"))
        listen = MonitorAddress(tls=page_tls(certificate, key))
        one = aiohttp.TCPConnector(ssl=trusting(first), limit=1)
        async with (
            dashboard(Watched(nothing, tmp_path), listen) as url,
            aiohttp.ClientSession(connector=one) as long,
        ):
            assert url.startswith("https://")
            await look(long, url)
            await serves(url, first, second)
            install(second.issue("page", host="127.0.0.1"))
            await serves(url, second, first)
            shutil.copy(third.issue("page", host="127.0.0.1")[0], certificate)  # whose key is not there yet
            await serves(url, second, first, third)
            assert len(errors()) == 1
            assert "they cannot be used (key values mismatch)" in errors()[0]
            assert errors()[0].endswith("; the certificate read before goes on to serve")
            certificate.write_text("damaged", encoding="utf-8")
            await serves(url, second, third)
            key.unlink()
            await serves(url, second, third)
            assert [("is not a PEM file" in e, "cannot be read" in e) for e in errors()[1:]] == [
                (True, False), (False, True),
            ]  # fmt: skip
            install(third.issue("page", host="127.0.0.1"))
            await serves(url, third, first, second)
            assert len(errors()) == 3
            await look(long, url)  # which trusts only the first: it is the connection that was open

    asyncio.run(story())


def test_a_page_whose_files_do_not_fit_is_not_shown(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    (certificate, _), (_, key) = ours.issue("one"), ours.issue("two")
    with pytest.raises(UsageError, match=r"key = .*two.key: they cannot be used .*its own key"):
        page_tls(certificate, key)
    with pytest.raises(UsageError, match="cannot be read"):
        page_tls(certificate, tmp_path / "none")
