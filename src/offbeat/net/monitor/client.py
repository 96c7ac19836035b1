"""Asking a running server's dashboard for its snapshot."""

import json
import ssl
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from pydantic import TypeAdapter, ValidationError

from offbeat.core.errors import RunError, UsageError
from offbeat.core.validation import format_error
from offbeat.net.address import is_loopback
from offbeat.net.monitor.snapshot import Snapshot

TIMEOUT = 10.0
LARGEST = 64 * 2**20  # bytes of an answer
_SNAPSHOT: TypeAdapter[Snapshot] = TypeAdapter(Snapshot)


class _NoRedirect(HTTPRedirectHandler):
    """The token is for one address only."""

    def redirect_request(self, *_: object) -> None:
        """Never."""


def fetch_snapshot(
    url: str, *, token: str | None = None, ca: Path | None = None, unencrypted: bool = False
) -> Snapshot:
    """What the dashboard at an address shows; `ca` is a file of certificates to trust, not the system's.

    Raises `UsageError` for an address that cannot be asked, `RunError` where the answer is not one.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # such as a bracket that is not closed
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url} is not the address of a dashboard, such as https://server:8080/")
    if parts.scheme == "http" and token is not None and not (unencrypted or is_loopback(parts.hostname)):
        raise UsageError(
            f"{url}: the token would cross the network readable; use https, or accept that with --unencrypted"
        )
    if token is not None and not (token.isascii() and token.isprintable()):
        raise UsageError(
            "the token has characters that no token has; give the line that dashboard-token printed"
        )
    try:
        context = ssl.create_default_context(cafile=str(ca) if ca else None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--ca {ca} cannot be read: {error}") from None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    around = (ProxyHandler({}),) if is_loopback(parts.hostname) else ()  # no proxy has a way to this machine
    opener = build_opener(_NoRedirect, HTTPSHandler(context=context), *around)
    try:
        with opener.open(
            Request(f"{url.rstrip('/')}/api/snapshot", headers=headers), timeout=TIMEOUT
        ) as answer:
            body = answer.read(LARGEST + 1)
    except HTTPError as error:
        with error:
            hint = ": give its token with --token-file" if error.code == 401 else ""
            raise RunError(f"{url} answers {error.code} {error.reason}{hint}") from None
    except (URLError, OSError, HTTPException) as error:
        raise RunError(f"{url} does not answer: {getattr(error, 'reason', error)}") from None
    return _read(url, body)


def _read(url: str, body: bytes) -> Snapshot:
    if len(body) > LARGEST:
        raise RunError(f"{url} answers more than {LARGEST} bytes")
    try:
        return _SNAPSHOT.validate_python(json.loads(body))
    except ValidationError as error:
        raise RunError(f"{url} does not answer as a dashboard does: {format_error(error)}") from None
    except ValueError:
        raise RunError(f"{url} does not answer as a dashboard does: that is not JSON") from None
