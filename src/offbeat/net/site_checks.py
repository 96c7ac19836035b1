"""Checks of a site's set-up, without taking part: the way to the server, its credential, the site itself."""

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from time import time

from offbeat.core.errors import OffbeatError, RunError, UsageError
from offbeat.net.address import is_local
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.checks import Check
from offbeat.net.grpc.call import greeting, token_ends
from offbeat.net.grpc.protocol import TIME_KEY
from offbeat.net.grpc.throughput import BusyError, measure
from offbeat.net.probe import STEPS, UnreachableError, probe
from offbeat.net.proxy import Proxy
from offbeat.net.versions import VERSION_KEY
from offbeat.net.wire.limits import Limits
from offbeat.runs.permissions import why_unwritable
from offbeat.units import duration_text
from offbeat.version import __version__

MOST_SKEW = 60.0
"""Seconds by which the clocks of a site and its server may differ."""
LEAST_FREE = 1 << 30
"""Bytes that should be free for a site's state."""

LEAST_THROUGHPUT = 1e5
"""Bytes per second that a site should have in both directions."""


@dataclass(frozen=True)
class SiteSetUp:
    """What a site is given.

    Attributes:
        address: The server's address.
        credentials: The site's credentials.
        proxy: The proxy on the way. None means none.
        fingerprint: The fingerprint of its kit's authority. None means no kit.
        state: The state directory. None means none.
        data: The site's data, as the option gives them. None means none.
        policy: The file of the site's policy. None means none.

    Raises:
        UsageError: The address is none.
    """

    address: str
    credentials: SiteCredentials
    proxy: Proxy | None = None
    fingerprint: str | None = None
    state: Path | None = None
    data: str | None = None
    policy: Path | None = None

    def __post_init__(self) -> None:
        is_local(self.address)

    @cached_property
    def way(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """What was found at each step of the way to the server, and what is wrong at the one that fails."""
        try:
            return probe(self.address, self.credentials, self.proxy), {}
        except UnreachableError as error:
            return error.passed, {error.step: error.reason}
        except OffbeatError as error:
            return {}, {"TLS": str(error)}

    @cached_property
    def server_metadata(self) -> Mapping[str, str]:
        """What the server says of itself to a site with this credential."""
        return asyncio.run(greeting(self.address, self.credentials, Limits(), self.proxy))


def nearest_existing(directory: Path) -> Path:
    """The directory, or where it would be made."""
    return next((each for each in (directory, *directory.absolute().parents) if each.exists()), Path("/"))


def check_disk(state: Path) -> str:
    """Check that the state directory can be made and has space."""
    place = nearest_existing(state)
    if (why := why_unwritable(place)) is not None:
        raise UsageError(why)
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:.1f} GB are free at {place}"
    if free < LEAST_FREE:
        raise RunError(f"{text}: free {LEAST_FREE / 1e9:.1f} GB, or more for a large model")
    return text


def _step(step: str, set_up: SiteSetUp) -> str | None:
    found, wrong = set_up.way
    if step in wrong:
        raise RunError(wrong[step])
    return found.get(step)


def _access(set_up: SiteSetUp) -> str:
    _ = set_up.server_metadata
    return "the server takes this site's credential"


def _token(set_up: SiteSetUp) -> str | None:
    if (ends := token_ends(set_up.server_metadata)) is None:
        return None
    days = (ends - time()) / 86400
    text = f"the token ends in {days:.1f} days"
    if days <= 0:
        raise UsageError(text)
    return text


def _version(set_up: SiteSetUp) -> str:
    server_version = set_up.server_metadata.get(VERSION_KEY, "of an unknown version")
    return f"server {server_version}, site {__version__}"


def _clock(set_up: SiteSetUp) -> str | None:
    server_time = set_up.server_metadata.get(TIME_KEY, "")
    if not server_time.isdecimal():
        return None
    skew = abs(time() - int(server_time))
    text = f"this machine's clock differs from the server's by {duration_text(round(skew))}"
    if skew > MOST_SKEW:
        raise RunError(f"{text}: set it, by NTP for example")
    return text


def _throughput(set_up: SiteSetUp) -> str:
    try:
        throughput = asyncio.run(measure(set_up.address, set_up.credentials, Limits(), set_up.proxy))
    except BusyError as error:
        # The site's set-up has no fault: the server has just no time for it.
        return f"not measured: {error}"
    text = (
        f"{throughput.up / 1e6:.2f} MB/s to the server, {throughput.down / 1e6:.2f} MB/s from it: 100 MB "
        f"take {duration_text(round(1e8 / throughput.up))} and {duration_text(round(1e8 / throughput.down))}"
    )
    if min(throughput.up, throughput.down) < LEAST_THROUGHPUT:
        raise RunError(
            f"{text}: ask the network's operator, or train with a codec, which makes updates smaller"
        )
    return text


_ACCEPTED = (*STEPS, "access")
SITE_CHECKS: tuple[Check[SiteSetUp], ...] = (
    # What the site and the server compare, before anything that the server answers.
    Check("fingerprint", lambda set_up: set_up.fingerprint),
    *(Check(step, partial(_step, step)) for step in STEPS),
    Check("access", _access, after=STEPS),
    Check("token", _token, after=_ACCEPTED),
    Check("version", _version, after=_ACCEPTED),
    Check("clock", _clock, after=_ACCEPTED),
    Check("throughput", _throughput, after=(*_ACCEPTED, "token", "clock")),
    Check("disk", lambda set_up: None if set_up.state is None else check_disk(set_up.state)),
)
"""What a site needs, in the order in which it needs it."""
