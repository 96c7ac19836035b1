"""The dates of a server's certificate: what is wrong with them, told at the start and while it serves."""

import logging
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from offbeat.core.errors import UsageError
from offbeat.net.auth.credentials import pem
from offbeat.net.clock import Clock, SystemClock

log = logging.getLogger(__name__)
LEAST_DAYS = 14.0
"""Days that a server's certificate should still be valid."""
EVERY = 3600.0
"""Seconds between two looks at a certificate, at most."""
AGAIN = 86400.0
"""Seconds after which the same problem is told again."""


def problem_with_dates(certificate: x509.Certificate, now: datetime) -> str | None:
    """What is wrong with the dates of a certificate, and what to do; None for nothing."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    when = f"it is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}"
    if now < begins:
        return f"is not valid yet ({when}): check this machine's clock, or have another signed"
    days = (ends - now).total_seconds() / 86400
    if days >= LEAST_DAYS:
        return None
    how = "has expired" if days < 0 else f"ends in {days:.1f} days"
    return (
        f"{how} ({when}): have another signed, or give offbeat enrol --host NAME, whose "
        "certificate the server renews"
    )


async def watch_certificate(path: Path, clock: Clock | None = None) -> None:
    """Log what is wrong with the dates of a certificate: now, when it expires, and then once a day."""
    clock = clock or SystemClock()
    told, valid, pause = -AGAIN, True, EVERY
    while True:
        # While the file is being replaced, nothing is told.
        with suppress(UsageError, ValueError):
            certificate, now = x509.load_pem_x509_certificate(pem(path)), datetime.now(UTC)
            problem, was_valid = problem_with_dates(certificate, now), valid
            left = (certificate.not_valid_after_utc - now).total_seconds()
            valid = certificate.not_valid_before_utc <= now and left >= 0
            if problem is not None and (valid != was_valid or clock.now() - told >= AGAIN):
                level = logging.WARNING if valid else logging.ERROR
                log.log(level, "the server's certificate %s %s", path, problem)
                told = clock.now()
            pause = min(EVERY, left + 1) if left >= 0 else EVERY
        await clock.sleep(pause)
