"""The live page's server: what it answers, to whom, and what it refuses."""

import asyncio
import base64
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from offbeat.core.errors import UsageError
from offbeat.net.auth.tokens import DASHBOARD, Tokens, make_token
from offbeat.net.monitor.from_journal import TIMELINE_ROWS
from offbeat.net.monitor.http import PAGE, SECURITY_HEADERS, MonitorAddress, Watched, dashboard
from offbeat.net.monitor.scrapes import Scrapes
from offbeat.net.refusal_log import RefusalLog
from offbeat.runs.record import RunRecord
from tests.net.page_token import page_token, write_page_token
from tests.net.replayed_run import Played, recorded

TOKEN = "a-token-of-the-test"
Visit = Callable[[aiohttp.ClientSession, str], Awaitable[None]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return recorded(tmp_path_factory.mktemp("source") / "run")


@pytest.fixture
def played(source: RunRecord, tmp_path: Path) -> Played:
    played = Played(source, tmp_path / "state", {"NaN": 2})
    played.until(100.0)
    return played


def visit(played: Played, go: Visit, token: str | None = None) -> None:
    async def both() -> None:
        listen = MonitorAddress(token=None if token is None else page_token(played.directory, token))
        async with (
            dashboard(Watched(played.snapshot, played.directory), listen) as url,
            aiohttp.ClientSession() as session,
        ):
            await go(session, url)

    asyncio.run(both())


def test_snapshot(played: Played) -> None:
    async def go(session: aiohttp.ClientSession, url: str) -> None:
        async with session.get(url + "api/snapshot") as answer:
            assert answer.content_type == "application/json"
            told = await answer.json()
        assert told["now"] == 100.0
        assert told["rejected"] == {"NaN": 2}
        assert told["sites"][0]["name"] == "cleveland"
        assert told["arrived"] == sum(site["updates"] for site in told["sites"]) > 0

    visit(played, go)


def test_lists_go_on_where_they_ended(played: Played, source: RunRecord) -> None:
    async def go(session: aiohttp.ClientSession, url: str) -> None:
        async def ask(path: str) -> Any:
            async with session.get(url + path) as answer:
                assert answer.status == 200
                return await answer.json()

        for name in ("timeline", "metrics"):
            first = await ask(f"api/{name}")
            again = await ask(f"api/{name}?since={first['next']}")
            assert (again["next"], again["rows"]) == (first["next"], [])
            assert len(first["rows"]) > 0
        before = await ask("api/timeline")
        played.until(200.0)
        after = await ask(f"api/timeline?since={before['next']}")
        shown = [row[0] for row in before["rows"] + after["rows"]]
        assert shown == sorted(set(shown))
        names = {"joined", "train", "arrived", "lost", "left", "aggregate"}
        known = [row.seq for row in source.rows() if row.t <= 200 and row.name in names]
        assert shown == known

    visit(played, go)


def test_a_long_journal_is_shown_from_its_end(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.net.monitor.from_journal.TIMELINE_ROWS", 10)
    assert TIMELINE_ROWS > 1000

    async def go(session: aiohttp.ClientSession, url: str) -> None:
        async with session.get(url + "api/timeline") as answer:
            newest = await answer.json()
        assert len(newest["rows"]) <= 10
        async with session.get(url + "api/timeline?since=-1") as answer:
            oldest = await answer.json()
        assert oldest["next"] == 9 < newest["next"]

    visit(played, go)


def test_the_page_and_prometheus_are_there_with_their_headers(played: Played) -> None:
    async def go(session: aiohttp.ClientSession, url: str) -> None:
        for path in (*PAGE, "/metrics", "/api/snapshot", "/nothing"):
            async with session.get(url.rstrip("/") + path) as answer:
                assert answer.status == (404 if path == "/nothing" else 200)
                for name, value in SECURITY_HEADERS.items():
                    assert answer.headers[name] == value
            async with session.head(url.rstrip("/") + path) as answer:
                assert answer.status == (404 if path == "/nothing" else 200)
                assert await answer.read() == b""
        async with session.get(url + "metrics") as answer:
            assert 'offbeat_rejected_messages_total{reason="NaN"} 2.0' in await answer.text()

    visit(played, go)


def test_scrapes_are_noted_with_what_they_were_told_of_the_end(played: Played) -> None:
    noted, stopped = [], None
    scrapes = Scrapes()
    scrapes.add = lambda host, *, ended: noted.append((host, ended))  # type: ignore[method-assign]

    async def go() -> None:
        nonlocal stopped
        watched = Watched(
            lambda: replace(played.snapshot(), stopped=stopped), played.directory, scrapes=scrapes
        )
        async with dashboard(watched, MonitorAddress()) as url, aiohttp.ClientSession() as session:
            await (await session.get(url + "metrics")).read()
            await (await session.head(url + "metrics")).read()
            await (await session.get(url + "api/snapshot")).read()
            stopped = "reached 5 versions"
            assert "offbeat_stopped 1.0" in await (await session.get(url + "metrics")).text()

    asyncio.run(go())
    assert noted == [("127.0.0.1", False), ("127.0.0.1", True)]


def test_probes_need_no_token_and_hear_no_data(played: Played, tmp_path: Path) -> None:
    unready = ""

    async def go() -> None:
        nonlocal unready
        token = tmp_path / "token"
        make_token(token, DASHBOARD)
        watched = Watched(lambda: pytest.fail("no data"), tmp_path / "missing", lambda: unready)
        async with (
            dashboard(watched, MonitorAddress(token=Tokens(token))) as url,
            aiohttp.ClientSession(headers={"Host": "server.example"}) as session,
        ):
            for unready, status in (("", 200), ("stopping", 503)):
                async with session.get(url + "healthz") as answer:
                    assert (answer.status, await answer.text()) == (200, "ok\n")
                async with session.get(url + "readyz") as answer:
                    assert (answer.status, await answer.text()) == (status, f"{unready or 'ready'}\n")
            async with session.get(url + "healthz", data=b"body") as answer:
                assert answer.status == 413
            async with session.get(url + "metrics") as answer:
                assert answer.status == 401

    asyncio.run(go())


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_it_can_only_be_read(played: Played, method: str) -> None:
    async def go(session: aiohttp.ClientSession, url: str) -> None:
        for path in ("", "api/snapshot", "metrics"):
            async with session.request(method, url + path) as answer:
                assert answer.status == 405
                assert answer.headers["X-Content-Type-Options"] == "nosniff"

    visit(played, go)


@pytest.mark.parametrize(
    "path",
    ["../run.db", "..%2f..%2frun.db", "%2e%2e/run.db", "page/page.js", "run.db", "//etc/passwd", "page.js/..",
     "page.js%00", "api/../../x"],
)  # fmt: skip
def test_no_path_leads_to_a_file(played: Played, path: str) -> None:
    async def go(_: aiohttp.ClientSession, url: str) -> None:
        host, port = url.removeprefix("http://").rstrip("/").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.split(b" ")[1] in (b"404", b"400")
        assert b"SQLite" not in answer

    visit(played, go)


def test_requests_have_limits(played: Played) -> None:
    async def go(session: aiohttp.ClientSession, url: str) -> None:
        async with session.get(url + "?x=" + 5000 * "a") as answer:
            assert answer.status in (400, 414)
        async with session.get(url, headers={"X-Long": 5000 * "a"}) as answer:
            assert answer.status in (400, 431)
        async with session.get(url, data=b"body") as answer:
            assert answer.status == 413
        for since in ("x", "1.5", "", "9" * 30, "１", "--1"):
            async with session.get(url + "api/metrics", params={"since": since}) as answer:
                assert answer.status == 400
                assert "since" in await answer.text()

    visit(played, go)


def test_a_token_is_asked_of_everybody(played: Played) -> None:
    basic = base64.b64encode(f"me:{TOKEN}".encode()).decode()
    good = [f"Bearer {TOKEN}", f"bearer  {TOKEN}", f"Basic {basic}"]
    bad = [
        None,
        "",
        TOKEN,
        "Bearer",
        f"Bearer {TOKEN}x",
        "Basic !!!",
        f"Basic {TOKEN}",
        "Bearer " + 1000 * "x",
    ]

    async def go(session: aiohttp.ClientSession, url: str) -> None:
        for path in ("", "page.js", "api/snapshot", "metrics", "nothing"):
            for header in (*good, *bad):
                headers = {} if header is None else {"Authorization": header}
                async with session.get(url + path, headers=headers) as answer:
                    if header in good:
                        assert answer.status == (404 if path == "nothing" else 200)
                    else:
                        assert answer.status == 401
                        assert answer.headers["WWW-Authenticate"].startswith("Basic")

    visit(played, go, TOKEN)


def test_without_a_token_only_localhost_is_answered(played: Played) -> None:
    async def go(session: aiohttp.ClientSession, url: str) -> None:
        for host, status in (
            ("localhost:1", 200),
            ("[::1]:1", 200),
            ("127.0.0.1", 200),
            ("LOCALHOST:1", 200),
            ("evil.example", 403),
            ("[::1].evil.example", 403),
            ("[::1].evil.example:1", 403),
            ("localhost.evil.example:1", 403),
            ("localhost:1.evil.example", 403),
            ("127.0.0.1.evil.example", 403),
            ("localhost@evil.example", 403),
        ):
            async with session.get(url + "api/snapshot", headers={"Host": host}) as answer:
                assert answer.status == status

    visit(played, go)


def test_a_run_that_cannot_be_read_is_told_without_its_place(played: Played) -> None:
    (played.directory / "run.db").unlink()

    async def go(session: aiohttp.ClientSession, url: str) -> None:
        async with session.get(url + "api/metrics") as answer:
            assert answer.status == 503
            assert str(played.directory) not in await answer.text()
        async with session.get(url + "api/snapshot") as answer:
            assert answer.status == 200

    visit(played, go)


def test_a_failure_is_one_line(played: Played, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise ValueError("a secret")

    async def go() -> None:
        async with (
            dashboard(Watched(broken, played.directory), MonitorAddress()) as url,
            aiohttp.ClientSession() as session,
            session.get(url + "api/snapshot") as answer,
        ):
            assert answer.status == 500
            assert "secret" not in await answer.text()
            assert answer.headers["X-Content-Type-Options"] == "nosniff"

    asyncio.run(go())
    assert "the dashboard failed to answer" in caplog.text


def test_numbers_that_json_has_not_become_null(played: Played) -> None:
    import sqlite3

    database = sqlite3.connect(played.directory / "run.db")
    database.execute("UPDATE metrics SET loss = 9e999, data = '{\"f1\": NaN}'")
    database.commit()
    database.close()

    async def go(session: aiohttp.ClientSession, url: str) -> None:
        async with session.get(url + "api/metrics") as answer:
            rows = json.loads(await answer.text(), parse_constant=pytest.fail)["rows"]
        assert rows[0]["loss"] is None
        assert rows[0]["f1"] is None

    visit(played, go)


# ---- a token that is changed ----


def test_a_token_is_changed_while_the_page_is_shown(played: Played, caplog: pytest.LogCaptureFixture) -> None:
    """No file yet, a first token, a second, three that cannot be, one that is mended."""
    file = played.directory / "dashboard-token"

    async def go() -> None:
        async with (
            dashboard(
                Watched(played.snapshot, played.directory),
                MonitorAddress(token=Tokens(file)),
            ) as url,
            aiohttp.ClientSession() as session,
        ):

            async def let_in(*tokens: str) -> list[bool]:
                found = []
                for token in tokens:
                    headers = {"Authorization": f"Bearer {token}"} if token else {}
                    async with session.get(url + "api/snapshot", headers=headers) as answer:
                        assert answer.status in (200, 401)
                        found.append(answer.status == 200)
                return found

            assert await let_in("", TOKEN) == [True, True]
            first = make_token(file, DASHBOARD)
            assert await let_in("", TOKEN, first) == [False, False, True]
            second = make_token(file, DASHBOARD)
            assert await let_in("", first, second) == [False, False, True]
            for damage in ("", "no hash"):
                file.write_text(damage, encoding="utf-8")
                assert await let_in("", first, second) == [False, False, True]
            file.unlink()
            assert await let_in("", first, second) == [False, False, True]
            write_page_token(file, TOKEN)
            assert await let_in("", second, TOKEN) == [False, False, True]

    asyncio.run(go())
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 3
    assert all("dashboard-token: the file cannot be read" in e for e in errors)
    assert all(e.endswith("; the tokens read before stay valid") for e in errors)


# ---- where it may listen ----


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "server.example"])
def test_beyond_loopback_a_token_and_tls_are_needed(tmp_path: Path, host: str) -> None:
    import ssl

    token = page_token(tmp_path, TOKEN)
    with pytest.raises(UsageError, match="needs a token"):
        MonitorAddress(host)
    with pytest.raises(UsageError, match="needs a token"):
        MonitorAddress(host, token=Tokens(tmp_path / "none"))
    with pytest.raises(UsageError, match="needs a token"):
        MonitorAddress(host, unencrypted=True)
    with pytest.raises(UsageError, match=r"needs TLS.*--dashboard http://"):
        MonitorAddress(host, token=token)
    MonitorAddress(host, token=token, unencrypted=True)
    MonitorAddress(host, token=token, tls=ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_needs_neither(host: str) -> None:
    MonitorAddress(host)


def test_a_taken_port_is_one_line(played: Played) -> None:
    async def go() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}"):
                async with dashboard(Watched(played.snapshot, played.directory), MonitorAddress(port=port)):
                    pass

    asyncio.run(go())


def test_failed_logins_of_the_page_are_counted_and_limited(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.net.failed_logins.MOST", 5)
    refusals = RefusalLog("page ")

    async def go() -> list[int]:
        listen = MonitorAddress(token=page_token(played.directory, TOKEN))
        async with (
            dashboard(Watched(played.snapshot, played.directory), listen, refusals) as url,
            aiohttp.ClientSession() as session,
        ):

            async def status(token: str | None) -> int:
                headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                async with session.get(url, headers=headers) as answer:
                    return answer.status

            return [await status(token) for token in (None, *["wrong"] * 7, TOKEN)]

    assert asyncio.run(go()) == [401, *[401] * 5, 429, 429, 429]
    assert refusals.counts == {"page credential": 5, "page logins": 3}
