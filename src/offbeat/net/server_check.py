"""Tries out a server's set-up before it opens: address, certificate, tokens, disk, clock.

What belongs to the run, its recipe, data and state directory, is checked where the run is made.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509

from offbeat.core.errors import UsageError
from offbeat.net.address import is_loopback, socket_path, split
from offbeat.net.auth.certificate_dates import problem_with_dates
from offbeat.net.auth.certificates import SERVER, check_pair, check_usage
from offbeat.net.auth.credentials import Authenticator, ServerCredentials, pem
from offbeat.net.check import CheckResult, check_disk, check_loading
from offbeat.net.grpc.server import check_free
from offbeat.units import duration_text

MOST_FSYNC = 0.1
"""Seconds that a write to the state's disk may take until it is durable."""
MOST_BEHIND = 60.0
"""Seconds by which files of the state may be newer than this machine's clock says."""
_WRITES, _BYTES = 5, 65_536


def check_server(
    state: Path, listen: str, page: str | None, credentials: ServerCredentials, sites: int
) -> Iterator[CheckResult]:
    """Check what a server needs of its machine and its credentials; nothing is opened or kept.

    Args:
        state: The state directory.
        listen: Address for sites.
        page: Address of the live page. None means no page.
        credentials: The server's credentials.
        sites: Number of sites for which the run waits.
    """
    yield check_loading("address", lambda: _free(listen))
    if page is not None:
        yield check_loading("page", lambda: _free(page))
    yield check_loading("access", lambda: _access(listen, credentials))
    if credentials.certificate is not None and credentials.key is not None:
        certificate = credentials.certificate
        yield check_loading("certificate", lambda: _certificate(certificate, listen))
        yield check_loading("key", lambda: _key(certificate, credentials.key))
    if credentials.client_ca is not None:
        authority = credentials.client_ca
        yield check_loading("authority", lambda: _authority(authority))
    yield check_loading("sites", lambda: _sites(credentials, sites))
    yield check_disk(state)
    yield check_writing(state)
    yield check_clock(state)


def check_writing(state: Path) -> CheckResult:
    """How long a write to the state's disk takes until it is durable, for which each update waits."""
    place = next((each for each in (state, *state.absolute().parents) if each.exists()), Path("/"))
    times = []
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            for _ in range(_WRITES):
                begun = time.monotonic()
                file.write(os.urandom(_BYTES))
                file.flush()
                os.fsync(file.fileno())
                times.append(time.monotonic() - begun)
    except OSError as error:
        text = (
            f"{place} cannot be written ({error.strerror}): give --state a directory that this user can write"
        )
        return CheckResult("writing", False, text)
    usual = sorted(times)[_WRITES // 2]
    text = f"a write is durable after {1000 * usual:.1f} ms"
    if usual > MOST_FSYNC:
        hint = "each update waits for that, so give --state a local disk, not a network's"
        return CheckResult("writing", False, f"{text}: {hint}")
    return CheckResult("writing", True, text)


def check_clock(state: Path) -> CheckResult:
    """Whether the state's files are older than this machine's clock says it is now."""
    now = datetime.now(UTC)
    files = [path.stat().st_mtime for path in state.iterdir()] if state.is_dir() else []
    ahead = max(files, default=0.0) - now.timestamp()
    if ahead > MOST_BEHIND:
        newer = duration_text(round(ahead))
        text = (
            f"it is {now:%Y-%m-%d %H:%M} UTC here, and a file of {state} is {newer} newer: "
            "set this machine's clock, by NTP for example"
        )
        return CheckResult("clock", False, text)
    return CheckResult("clock", True, f"it is {now:%Y-%m-%d %H:%M} UTC")


def _free(address: str) -> str:
    check_free(address)
    return f"{address} is free"


def _access(listen: str, credentials: ServerCredentials) -> str:
    credentials.check(listen)
    Authenticator(credentials)
    proofs = {"tokens": credentials.tokens, "certificates": credentials.client_ca}
    asked = " and ".join(name for name, file in proofs.items() if file is not None)
    encrypted = "with TLS" if credentials.certificate is not None else "without TLS"
    return f"{encrypted}, sites prove their names by {asked or 'nothing'}"


def _load(path: Path, option: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem(path))
    except ValueError:
        raise UsageError(f"{option} {path} is no certificate: give one in PEM") from None


def _certificate(path: Path, listen: str) -> str:
    certificate, now = _load(path, "--cert"), datetime.now(UTC)
    check_usage(f"--cert {path}", pem(path), SERVER)
    names, ends = _names(certificate), certificate.not_valid_after_utc
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


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [str(name.value) for name in found]


def _is_specific(host: str) -> bool:
    """Whether an address for listening is one that sites could use: a name, or not all addresses."""
    with suppress(ValueError):
        if ip_address(host).is_unspecified:
            return False
    return bool(host) and not is_loopback(host)


def _key(certificate: Path, key: Path | None) -> str:
    assert key is not None
    check_pair(f"--cert {certificate}", pem(certificate), f"--key {key}", pem(key))
    return f"{key} is the certificate's"


def _authority(path: Path) -> str:
    certificate = _load(path, "--client-ca")
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise UsageError(
            f"--client-ca {path} has expired on {certificate.not_valid_after_utc:%Y-%m-%d}: no site can come "
            "in; put the authority's new certificate there"
        )
    return f"{path} is valid until {certificate.not_valid_after_utc:%Y-%m-%d}"


def _sites(credentials: ServerCredentials, sites: int) -> str:
    """How many sites can come in."""
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
