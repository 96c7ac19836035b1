"""Client of a running server's dashboard."""

import asyncio
import json
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from pydantic import TypeAdapter, ValidationError

from offbeat.core.errors import RunError, UsageError, reason_of
from offbeat.core.validation import format_error
from offbeat.net.address import host_of, is_loopback
from offbeat.net.auth.tokens import check_token
from offbeat.net.monitor.snapshot import Snapshot

TIMEOUT = 10.0
# Most bytes of an answer.
LARGEST = 64 * 2**20
_SNAPSHOT: TypeAdapter[Snapshot] = TypeAdapter(Snapshot)


def fetch_snapshot(
    url: str, *, token: str | None = None, ca: Path | None = None, unencrypted: bool = False
) -> Snapshot:
    """Fetch the snapshot of a run from its dashboard.

    Args:
        url: The dashboard's address.
        token: The page's token. It is sent to this address only, and redirects are not followed.
        ca: A file of certificates (PEM) to trust instead of the system's.
        unencrypted: Whether the token may cross the network in readable form.

    Returns:
        The snapshot as of the answer.

    Raises:
        UsageError: The address, the token or the file cannot be used.
        RunError: There is no answer within 10 s, or the answer is not a dashboard's.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        # The URL is malformed, such as by a bracket that is not closed.
        parts = urlsplit("")
    host = host_of(parts.netloc.rpartition("@")[2])
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(f"{url} is not the address of a dashboard, such as https://server:8080/")
    if parts.scheme == "http" and token is not None and not (unencrypted or is_loopback(host)):
        raise UsageError(
            f"{url}: the token would cross the network readable; use https, or accept that with --unencrypted"
        )
    check_token(token, "enrol --dashboard")
    try:
        tls = ssl.create_default_context(cafile=str(ca) if ca else None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--ca {ca} cannot be read: {reason_of(error)}") from None
    try:
        body = asyncio.run(_get(url, token, tls, loopback=is_loopback(host)))
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # The text of a failed connection names objects of Python; its cause is for people.
        reason = reason_of(getattr(error, "os_error", error)) or f"nothing came within {TIMEOUT:g} s"
        hint = "; the address of a page with TLS begins with https" if parts.scheme == "http" else ""
        raise RunError(f"{url} does not answer: {reason}{hint}") from None
    try:
        return _SNAPSHOT.validate_python(json.loads(body))
    except ValidationError as error:
        raise RunError(f"{url} does not answer as a dashboard does: {format_error(error)}") from None
    except (ValueError, RecursionError):
        raise RunError(f"{url} does not answer as a dashboard does: that is not JSON") from None


async def _get(url: str, token: str | None, tls: ssl.SSLContext, *, loopback: bool) -> bytes:
    """The body of the answer. Raises `RunError` for a status that is not 200, or a body that is too large."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    # A proxy of the environment has no way to this machine.
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers, trust_env=not loopback) as session,
        session.get(f"{url.rstrip('/')}/api/snapshot", ssl=tls, allow_redirects=False) as answer,
    ):
        if answer.status != 200:
            hint = ": give its token with --token-file" if answer.status == 401 else ""
            raise RunError(f"{url} answers {answer.status} {answer.reason or ''}{hint}")
        body = bytearray()
        async for chunk in answer.content.iter_any():
            body += chunk
            if len(body) > LARGEST:
                raise RunError(f"{url} answers more than {LARGEST} bytes")
        return bytes(body)
