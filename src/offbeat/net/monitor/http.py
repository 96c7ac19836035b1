"""The live page of a running server: one page, its data as JSON, and metrics for Prometheus; read-only.

aiohttp serves the page inside the server's own event loop. The page requests new data every two seconds. The
module keeps no data: every answer is made from a snapshot and the run's database.
"""

import asyncio
import base64
import logging
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from offbeat.core.errors import OffbeatError, UsageError, reason_of
from offbeat.net import descriptors
from offbeat.net.address import host_of, is_loopback
from offbeat.net.auth.tokens import DASHBOARD, Tokens
from offbeat.net.failed_logins import FailedLogins
from offbeat.net.monitor.acceptor import Acceptor
from offbeat.net.monitor.from_journal import metrics_since, timeline_since
from offbeat.net.monitor.prometheus import CONTENT_TYPE, exposition
from offbeat.net.monitor.scrapes import Scrapes
from offbeat.net.monitor.snapshot import Snapshot
from offbeat.net.refusal_log import RefusalLog
from offbeat.runs.record import read_run

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "offbeat",
}
PAGE = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEALTHY, READY = "/healthz", "/readyz"
"""Whether the event loop runs, and whether sites are accepted; without a token."""
LONGEST_LINE = 2048  # bytes of a request's first line, and of one header
_ACCEPTOR: web.AppKey[list[Acceptor]] = web.AppKey("acceptor")
_LOGINS: web.AppKey[FailedLogins] = web.AppKey("logins")
_REFUSALS: web.AppKey[RefusalLog] = web.AppKey("refusals")
_WATCHED: web.AppKey["Watched"] = web.AppKey("watched")
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_LOG = logging.getLogger("offbeat.net")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Watched:
    """The run that a page shows.

    Attributes:
        snapshot: Function that returns the present snapshot of the server.
        directory: The run's directory.
        unready: Function that returns why the server accepts no sites, such as "ended"; "" if it accepts
            sites.
        expires_in: Function that returns the seconds until each credential expires, by its owner.
        scrapes: The scrapes of its metrics.
    """

    snapshot: Callable[[], Snapshot]
    directory: Path
    unready: Callable[[], str] = lambda: ""
    expires_in: Callable[[], Mapping[str, float]] = dict
    scrapes: Scrapes = field(default_factory=Scrapes)


@dataclass(frozen=True, slots=True)
class MonitorAddress:
    """The address of the live page, and the token that protects the page.

    An address that is not loopback needs a token, and `tls` or `unencrypted`.

    Args:
        host: The host to listen on.
        port: The port; 0 takes a free one.
        token: The file of the token that every request must carry. Without a token, every user of this
            machine may read the page.
        tls: The page's certificate. None means no TLS.
        unencrypted: Whether the token may cross the network in readable form.

    Raises:
        UsageError: The page would be open to a network.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: Tokens | None = None
    tls: ssl.SSLContext | None = None
    unencrypted: bool = False

    def __post_init__(self) -> None:
        if is_loopback(self.host):
            return
        if self.token is None or self.token.empty:
            place = "DIR" if self.token is None else self.token.path.parent
            raise UsageError(
                f"dashboard on {self.host} needs a token, because others can reach it: make one with "
                f"offbeat enrol --dashboard --state {place}, or listen on 127.0.0.1"
            )
        if self.tls is None and not self.unencrypted:
            raise UsageError(
                f"dashboard on {self.host} needs TLS, because the token would cross the network readable: "
                "give a certificate and its key, listen on 127.0.0.1, or accept that with "
                f"--dashboard http://{self.host}:PORT"
            )


@asynccontextmanager
async def dashboard(
    watched: Watched, listen: MonitorAddress, refusals: RefusalLog | None = None
) -> AsyncIterator[str]:
    """Show a run for as long as the context lasts.

    Args:
        watched: The run.
        listen: Where to listen, and who may read the page.
        refusals: Counts refused connections. None means a counter that nobody reads.

    Yields:
        The page's address.

    Raises:
        UsageError: The page cannot listen at this address.
    """
    refusals = refusals or RefusalLog()
    runner = web.AppRunner(
        make_app(watched, listen, refusals), access_log=None, handle_signals=False,
        keepalive_timeout=30.0, shutdown_timeout=2.0, max_line_size=LONGEST_LINE, max_field_size=LONGEST_LINE,
    )  # fmt: skip
    await runner.setup()
    assert runner.server is not None
    acceptor = Acceptor(runner.server, descriptors.for_page(), listen.tls, refusals)
    runner.app[_ACCEPTOR].append(acceptor)
    try:
        try:
            host, port = acceptor.listen(listen.host, listen.port)
        except OSError as error:
            raise UsageError(
                f"dashboard cannot listen on {listen.host}:{listen.port}: {reason_of(error)}"
            ) from None
        name = f"[{host}]" if ":" in host else host
        yield f"{'https' if listen.tls else 'http'}://{name}:{port}/"
    finally:
        await acceptor.close()
        await runner.cleanup()


def make_app(watched: Watched, listen: MonitorAddress, refusals: RefusalLog | None = None) -> web.Application:
    """The application, without a socket.

    Args:
        watched: The run.
        listen: Who may read the page.
        refusals: Counts failed logins. None means a counter that nobody reads.

    Returns:
        The application of aiohttp, with its routes.
    """
    app = web.Application(middlewares=[_guard(listen)], client_max_size=1)
    app[_WATCHED], app[_ACCEPTOR] = watched, []
    app[_LOGINS], app[_REFUSALS] = FailedLogins(), refusals or RefusalLog()
    for path in PAGE:
        app.router.add_get(path, _page)
    app.router.add_get("/api/snapshot", _snapshot)
    app.router.add_get("/api/metrics", _metrics)
    app.router.add_get("/api/timeline", _timeline)
    app.router.add_get("/metrics", _prometheus)
    app.router.add_get(HEALTHY, _healthy)
    app.router.add_get(READY, _ready)
    return app


# ---- access ----


def _guard(listen: MonitorAddress) -> Any:
    """Refuse requests that are not for this page, and put the security headers on every answer."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = _refusal(request, listen)
        # Probes need no token, so they do not make a connection lasting.
        probed = request.path in (HEALTHY, READY)
        if refusal is None and not probed and request.transport is not None:
            for acceptor in request.app[_ACCEPTOR]:
                acceptor.admit(request.transport.get_extra_info("peername"))
        try:
            # A response is a mapping, which is false in some versions of aiohttp while it is empty.
            response = await handler(request) if refusal is None else refusal
        except web.HTTPException as error:
            response = _words(error.status, error.reason)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except OffbeatError:
            # The error's text names paths on this machine.
            response = _words(503, "the run's database cannot be read now")
        except Exception:
            _LOG.exception("the dashboard failed to answer")
            response = _words(500, "the answer failed; the server's log says how")
        response.headers.update(SECURITY_HEADERS)
        return response

    return guard


def _refusal(request: web.Request, listen: MonitorAddress) -> web.Response | None:
    if request.path in (HEALTHY, READY):
        # Probes have no token, and the answer has no data.
        return _words(413, "nothing is read from a request here") if request.can_read_body else None
    if listen.token is not None and not listen.token.empty:
        logins, host = request.app[_LOGINS], request.remote or ""
        if (waits := logins.refusal(host)) is not None:
            request.app[_REFUSALS].add("logins", host, waits)
            return _words(429, waits)
        if listen.token.name(token := token_of(request.headers.get("Authorization"))) == DASHBOARD:
            logins.succeeded(host)
        else:
            if token:
                logins.failed(host)
                request.app[_REFUSALS].add("credential", host, "the page's token is not valid")
            refused = _words(401, "this page needs its token: as a bearer, or as the password of any user")
            refused.headers["WWW-Authenticate"] = 'Basic realm="Offbeat", charset="UTF-8"'
            return refused
    elif not is_loopback(host_of(request.host)):
        # A page of another site may have sent the browser here by name.
        return _words(403, "without a token this page answers only to localhost")
    if request.can_read_body:
        return _words(413, "nothing is read from a request here")
    return None


def token_of(header: str | None) -> str:
    """The token of an Authorization header.

    Args:
        header: The header's value. None means that there is no such header.

    Returns:
        The bearer token, or the password of basic authentication, of any user; "" if there is neither.
    """
    kind, _, value = (header or "")[:LONGEST_LINE].partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        with suppress(ValueError):
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
    return ""


def _words(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")


# ---- resources ----


async def _page(request: web.Request) -> web.Response:
    name, kind = PAGE[request.path]
    body = (files("offbeat.net.monitor") / "page" / name).read_bytes()
    return web.Response(body=body, content_type=kind, charset="utf-8")


async def _snapshot(request: web.Request) -> web.Response:
    return _json(request.app[_WATCHED].snapshot())


async def _metrics(request: web.Request) -> web.Response:
    directory, since = request.app[_WATCHED].directory, _since(request)
    return _json(await asyncio.to_thread(lambda: metrics_since(read_run(directory), since)))


async def _timeline(request: web.Request) -> web.Response:
    directory, since = request.app[_WATCHED].directory, _since(request)
    return _json(await asyncio.to_thread(lambda: timeline_since(read_run(directory), since)))


async def _healthy(_: web.Request) -> web.Response:
    return _words(200, "ok")


async def _ready(request: web.Request) -> web.Response:
    unready = request.app[_WATCHED].unready()
    return _words(503, unready) if unready else _words(200, "ready")


async def _prometheus(request: web.Request) -> web.Response:
    watched = request.app[_WATCHED]
    last = await asyncio.to_thread(lambda: read_run(watched.directory).last_evaluation())
    snapshot = watched.snapshot()
    body = exposition(snapshot, last, watched.expires_in())
    if request.method == "GET":
        watched.scrapes.add(request.remote or "", ended=snapshot.stopped is not None)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


def _since(request: web.Request) -> int | None:
    text = request.query.get("since")
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise web.HTTPBadRequest(reason="since is not allowed: give the number that `next` had")
    return int(text)


def _json(value: object) -> web.Response:
    """An answer as JSON, with null for NaN and infinity."""
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", charset="utf-8")
