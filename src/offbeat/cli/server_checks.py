"""The checks of `offbeat serve --check`: address, certificate, tokens, disk, clock, data and run."""

import os
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import ip_address

from offbeat.cli.server_set_up import ServerSetUp, check_access, check_address, check_state, page_address
from offbeat.core.errors import RunError, UsageError
from offbeat.net.address import is_loopback, socket_path, split
from offbeat.net.auth.certificate_dates import problem_with_dates
from offbeat.net.auth.certificates import SERVER, check_pair, check_usage, hosts_of, load_certificate
from offbeat.net.auth.credentials import Authenticator, pem
from offbeat.net.checks import Check
from offbeat.net.site_checks import check_disk, nearest_existing
from offbeat.runs.record import holds_run, read_run
from offbeat.runs.schema import DATABASE
from offbeat.units import duration_text

MOST_FSYNC = 0.1
"""Seconds that a write to the state's disk may take until it is durable."""
MOST_BEHIND = 60.0
"""Seconds by which files of the state may be newer than this machine's clock says."""
_WRITES, _BYTES = 5, 65_536


def _address(set_up: ServerSetUp) -> str:
    check_address(set_up)
    return f"{set_up.listen} is free"


def _page(set_up: ServerSetUp) -> str | None:
    return None if page_address(set_up) is None else f"{set_up.page} is free"


def _access(set_up: ServerSetUp) -> str:
    check_access(set_up)
    credentials = set_up.credentials
    proofs = {"tokens": credentials.tokens, "certificates": credentials.client_ca}
    asked = " and ".join(name for name, file in proofs.items() if file is not None)
    encrypted = "with TLS" if credentials.certificate is not None else "without TLS"
    return f"{encrypted}, sites prove their names by {asked or 'nothing'}"


def _certificate(set_up: ServerSetUp) -> str | None:
    path, listen = set_up.credentials.certificate, set_up.listen
    if path is None:
        return None
    certificate, now = load_certificate(f"--cert {path}", pem(path)), datetime.now(UTC)
    check_usage(f"--cert {path}", pem(path), SERVER)
    names, ends = hosts_of(certificate), certificate.not_valid_after_utc
    if (problem := problem_with_dates(certificate, now)) is not None:
        raise UsageError(f"{path} {problem}")
    days = (ends - now).total_seconds() / 86400
    host = "" if socket_path(listen) is not None else split(listen)[0]
    if _is_specific(host) and host not in names:
        raise UsageError(
            f"{path} is for {', '.join(names) or 'no name'}, not for {host}, at which the server listens: "
            "have it signed for the name that sites use"
        )
    return f"for {', '.join(names) or 'no name'}, {days:.0f} days left; sites must use one of these names"


def _is_specific(host: str) -> bool:
    """Whether an address for listening is one that sites could use: a name, or not all addresses."""
    with suppress(ValueError):
        if ip_address(host).is_unspecified:
            return False
    return bool(host) and not is_loopback(host)


def _key(set_up: ServerSetUp) -> str | None:
    certificate, key = set_up.credentials.certificate, set_up.credentials.key
    if certificate is None or key is None:
        return None
    check_pair(f"--cert {certificate}", pem(certificate), f"--key {key}", pem(key))
    return f"{key} is the certificate's"


def _authority(set_up: ServerSetUp) -> str | None:
    path = set_up.credentials.client_ca
    if path is None:
        return None
    certificate = load_certificate(f"--client-ca {path}", pem(path))
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise UsageError(
            f"--client-ca {path} has expired on {certificate.not_valid_after_utc:%Y-%m-%d}: no site can come "
            "in; put the authority's new certificate there"
        )
    return f"{path} is valid until {certificate.not_valid_after_utc:%Y-%m-%d}"


def _sites(set_up: ServerSetUp) -> str:
    """Check how many sites can come in."""
    credentials, sites = set_up.credentials, set_up.options.clients
    if credentials.tokens is None:
        return f"the run waits for {sites} sites"
    authenticator = Authenticator(credentials)
    enrolled, left = sorted(authenticator.enrolled() or ()), authenticator.expires_in()
    valid = [site for site in enrolled if left.get(site, 1.0) > 0]
    if len(valid) < sites:
        expired = [site for site in enrolled if site not in valid]
        told = f" ({', '.join(expired)} expired)" if expired else ""
        raise UsageError(
            f"{len(valid)} of {sites} sites have a valid token in {credentials.tokens}{told}: enrol the "
            "others with offbeat enrol SITE --state DIR, or give another --sites"
        )
    return f"{len(valid)} sites have a token, the run waits for {sites}"


def _writing(set_up: ServerSetUp) -> str:
    """Check how long a write takes until it is durable on the state's disk, for which each update waits."""
    place, times = nearest_existing(set_up.state), list[float]()
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            for _ in range(_WRITES):
                begun = time.monotonic()
                file.write(os.urandom(_BYTES))
                file.flush()
                os.fsync(file.fileno())
                times.append(time.monotonic() - begun)
    except OSError as error:
        raise UsageError(
            f"{place} cannot be written ({error.strerror}): give --state a directory that this user can write"
        ) from None
    usual = sorted(times)[_WRITES // 2]
    text = f"a write is durable after {1000 * usual:.1f} ms"
    if usual > MOST_FSYNC:
        raise UsageError(f"{text}: each update waits for that, so give --state a local disk, not a network's")
    return text


def _clock(set_up: ServerSetUp) -> str:
    """Check that the state's files are older than this machine's clock says it is now."""
    now, state = datetime.now(UTC), set_up.state
    files = [path.stat().st_mtime for path in state.iterdir()] if state.is_dir() else []
    ahead = max(files, default=0.0) - now.timestamp()
    text = f"it is {now:%Y-%m-%d %H:%M} UTC"
    if ahead > MOST_BEHIND:
        newer = duration_text(round(ahead))
        raise RunError(
            f"{text} here, and a file of {state} is {newer} newer: "
            "set this machine's clock, by NTP for example"
        )
    return text


def _data(set_up: ServerSetUp) -> str:
    """Load the test data and make the run."""
    test = set_up.run.test
    return "no test data" if test is None else f"{len(test)} samples to test on"


def _state(set_up: ServerSetUp) -> str:
    """Check that the state directory is free for a new run, or holds this one."""
    state = set_up.state
    check_state(set_up)
    if not (state / DATABASE).is_file() or not holds_run(state):
        return f"{state} has no run: a new one begins"
    return f"{state} has this run, {read_run(state).status}: it goes on"


SERVER_CHECKS: tuple[Check[ServerSetUp], ...] = (
    Check("address", _address),
    Check("page", _page),
    Check("access", _access),
    Check("certificate", _certificate),
    Check("key", _key),
    Check("authority", _authority),
    Check("sites", _sites),
    Check("disk", lambda set_up: check_disk(set_up.state)),
    Check("writing", _writing),
    Check("clock", _clock),
    Check("data", _data),
    Check("state", _state, after=("data",)),
)
"""What is checked before a server opens; nothing is opened or kept."""
