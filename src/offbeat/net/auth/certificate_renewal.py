"""Renewal of the server's own certificate while the server runs."""

import asyncio
import logging
from datetime import UTC, datetime

from offbeat.core.errors import UsageError
from offbeat.net.auth.ca import OwnAuthority

log = logging.getLogger(__name__)
EVERY = 3600.0
"""Seconds between two looks at the certificate."""


async def keep_certificate(authority: OwnAuthority) -> None:
    """Renew the server's certificate whenever it ends soon; the server then reads it again by itself.

    What cannot be renewed is reported in the log once an hour, and the certificate stays in use.
    """
    while True:
        await asyncio.to_thread(renew_certificate, authority)
        await asyncio.sleep(EVERY)


def renew_certificate(authority: OwnAuthority, now: datetime | None = None) -> None:
    """Renew the server's certificate if it ends soon, and say so in the log."""
    try:
        if authority.renew_if_due(now or datetime.now(UTC)):
            log.info("the server's certificate is renewed, until %s", f"{authority.expires:%Y-%m-%d}")
    except UsageError as error:
        log.error("the server's certificate ends soon and cannot be renewed: %s", error)
