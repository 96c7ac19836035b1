"""Tries out a site's set-up before its first run: the way to the server, its credential, the site itself."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time

from offbeat.core.errors import OffbeatError
from offbeat.net.address import is_local
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.grpc.call import greeting, token_ends
from offbeat.net.grpc.protocol import TIME_KEY
from offbeat.net.grpc.throughput import BusyError, measure
from offbeat.net.probe import UnreachableError, probe
from offbeat.net.proxy import Proxy
from offbeat.net.transport import ChannelClosedError
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


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: What was checked.
        passed: Whether it is as it must be.
        text: What was found; where it did not pass, what to do.
    """

    name: str
    passed: bool
    text: str


async def check_access(
    address: str, credentials: SiteCredentials, proxy: Proxy | None = None
) -> list[CheckResult]:
    """Show a site's credential to a server, without taking part: access, version, clock."""
    try:
        server_metadata = await greeting(address, credentials, Limits(), proxy)
    except ChannelClosedError as error:
        return [CheckResult("access", False, str(error))]
    results = [CheckResult("access", True, "the server takes this site's credential")]
    if (ends := token_ends(server_metadata)) is not None:
        days = (ends - time()) / 86400
        results.append(CheckResult("token", days > 0, f"the token ends in {days:.1f} days"))
    server_version = server_metadata.get(VERSION_KEY, "of an unknown version")
    results.append(CheckResult("version", True, f"server {server_version}, site {__version__}"))
    if server_metadata.get(TIME_KEY, "").isdecimal():
        skew = time() - int(server_metadata[TIME_KEY])
        text = f"this machine's clock differs from the server's by {duration_text(round(abs(skew)))}"
        fine = abs(skew) <= MOST_SKEW
        results.append(CheckResult("clock", fine, text if fine else f"{text}: set it, by NTP for example"))
    return results


async def check_throughput(
    address: str, credentials: SiteCredentials, proxy: Proxy | None = None
) -> CheckResult:
    """Send a few megabytes to a server that takes the site's credential, and get as many."""
    try:
        throughput = await measure(address, credentials, Limits(), proxy)
    except BusyError as error:
        # The site's set-up has no fault: the server has just no time for it.
        return CheckResult("throughput", True, f"not measured: {error}")
    except ChannelClosedError as error:
        return CheckResult("throughput", False, str(error))
    slowest = min(throughput.up, throughput.down)
    text = (
        f"{throughput.up / 1e6:.2f} MB/s to the server, {throughput.down / 1e6:.2f} MB/s from it: 100 MB "
        f"take {duration_text(round(1e8 / throughput.up))} and {duration_text(round(1e8 / throughput.down))}"
    )
    if slowest < LEAST_THROUGHPUT:
        hint = "ask the network's operator, or train with a codec, which makes updates smaller"
        return CheckResult("throughput", False, f"{text}: {hint}")
    return CheckResult("throughput", True, text)


def check_way(
    address: str, credentials: SiteCredentials, proxy: Proxy | None = None
) -> Iterator[CheckResult]:
    """The way to a server, step by step, to the first step that fails.

    Raises:
        UsageError: The address is none.
    """
    is_local(address)
    try:
        reached = probe(address, credentials, proxy)
    except UnreachableError as error:
        known = [(step, text) for step, text in error.passed if step != error.step]
        yield from (CheckResult(step, True, text) for step, text in known)
        yield CheckResult(error.step, False, error.reason)
        return
    except OffbeatError as error:
        yield CheckResult("TLS", False, str(error))
        return
    yield from (CheckResult(step, True, text) for step, text in reached.steps)


def check_disk(state: Path) -> CheckResult:
    """Whether the state directory can be made and has space."""
    place = next((each for each in (state, *state.absolute().parents) if each.exists()), Path("/"))
    if (why := why_unwritable(place)) is not None:
        return CheckResult("disk", False, why)
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:.1f} GB are free at {place}"
    if free < LEAST_FREE:
        return CheckResult(
            "disk", False, f"{text}: free {LEAST_FREE / 1e9:.1f} GB, or more for a large model"
        )
    return CheckResult("disk", True, text)


def check_loading(name: str, load: Callable[[], str]) -> CheckResult:
    """Whether something at the site can be loaded; `load` returns a description of it."""
    try:
        return CheckResult(name, True, load())
    except OffbeatError as error:
        return CheckResult(name, False, str(error))
