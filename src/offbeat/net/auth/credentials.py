"""Credentials of servers and sites, and the check of a site's.

Beyond loopback the connection must be TLS and the site must prove its name: by a certificate that the
server's client CA has signed (its one common name, or its one DNS name, is the site's), by a token, or by
both, which must then agree. Each rule can be turned off by a flag that says what it risks. On loopback,
without credentials, a site says its own name.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from offbeat.core.errors import UsageError, reason_of
from offbeat.documents import read_bytes
from offbeat.net.address import check_name, is_local, is_name
from offbeat.net.audit import AuditLog, operator
from offbeat.net.auth.certificates import ends_at, is_same, names_in
from offbeat.net.auth.person import owner
from offbeat.net.auth.revocation import RevocationList, serial
from offbeat.net.auth.site_token import SiteToken
from offbeat.net.auth.tokens import SampleRange, Tokens, check_token, split_token
from offbeat.net.transport import ProtocolError

log = logging.getLogger(__name__)
SITE_KEY, TOKEN_KEY = "offbeat-site", "authorization"
FORWARDED_KEY = "x-forwarded-for"
"""The metadata key in which a proxy that ends TLS tells the address of a site."""
CERTIFICATE_KEY = "x509_pem_cert"  # gRPC's word for the certificate that a peer has shown
PROCESS_KEY = "offbeat-process"
"""The metadata key of a random name of the site's process: two processes with one credential differ in it."""
RENEWS_KEY = "offbeat-renews"
"""The metadata key of the site's key, which also tells that the site stores a renewed token."""
RENEWED_KEY = "offbeat-renewed"
"""The metadata key by which a server tells whether it renews the token for the site's key: 1 or 0."""
EXPIRES_KEY = "offbeat-expires"
"""The metadata key of when the token expires that a site has shown, in seconds since 1970."""
SERVER_OWNER = "@server"
"""The owner of the server's certificate, which no site's name can be."""
_MOST_TOKEN = 256
PeerIdentity = Mapping[str, list[bytes]]
"""The fields of a peer's certificate, under gRPC's names; empty without TLS."""


@dataclass(frozen=True, slots=True)
class ServerCredentials:
    """Credentials of a server, and those it requires of sites; the files are PEM.

    `certificate` and `key` are its own, `client_ca` signs the sites' certificates, `revoked` is the file
    that revokes some of them (a CRL, or a list of serial numbers), `tokens` is the file that `offbeat enrol`
    writes. `insecure_plaintext` allows no TLS beyond loopback: everybody on the way can read and change
    everything, tokens included. `insecure_any_name` allows sites without a credential beyond loopback:
    anybody may take part, under any name.
    """

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    tokens: Path | None = None
    insecure_plaintext: bool = False
    insecure_any_name: bool = False
    revoked: Path | None = None

    def __post_init__(self) -> None:
        _pair("cert", self.certificate, "key", self.key)
        if self.client_ca is not None and self.certificate is None:
            raise UsageError(f"client-ca = {self.client_ca}: it needs TLS, so give cert and key too")
        if self.revoked is not None and self.client_ca is None:
            raise UsageError(
                f"revoked = {self.revoked}: only certificates are revoked so, so give client-ca too; a "
                "site's tokens are revoked with offbeat enrol SITE --revoke"
            )

    def check(self, address: str) -> None:
        """Check that a server may listen at this address. Raises `UsageError`."""
        if is_local(address):
            return
        if self.certificate is None and not self.insecure_plaintext:
            raise UsageError(
                f"listen = {address}: beyond loopback TLS is required; give cert and key, or "
                "--insecure plaintext, with which everybody on the way can read and change everything"
            )
        if self.client_ca is None and self.tokens is None and not self.insecure_any_name:
            raise UsageError(
                f"listen = {address}: beyond loopback sites must prove who they are; give client-ca or "
                "tokens, or --insecure any-name, with which anybody may take part under any name"
            )


@dataclass(frozen=True, slots=True)
class SiteCredentials:
    """Credentials of a site, and those it requires of the server, as PEM.

    `ca` signs the server's certificate (None means the authorities that the system trusts); `certificate`
    and `key` are the site's own. Each is a file, or the bytes of one, as in a kit. `token` is what
    `offbeat enrol` printed, `name` is the site's own word, which counts where no proof is asked.
    `insecure_plaintext` allows no TLS beyond loopback; on loopback TLS is used if `ca` or `certificate` is
    given. `renewal_key` is the site's key, with which it stores a token that the server renews; empty means
    that it stores none. `process` tells apart the processes that have the same credentials.
    """

    name: str | None = None
    token: str | None = field(default=None, repr=False)
    ca: Path | bytes | None = field(default=None, repr=False)
    certificate: Path | bytes | None = field(default=None, repr=False)
    key: Path | bytes | None = field(default=None, repr=False)
    insecure_plaintext: bool = False
    renewal_key: str = field(default="", repr=False)
    process: str = field(default_factory=lambda: token_hex(8), repr=False, compare=False)

    def __post_init__(self) -> None:
        _pair("certificate", self.certificate, "key", self.key)
        if self.name is not None:
            check_name("name =", self.name)
        check_token(self.token, "enrol")
        if self.insecure_plaintext and (self.ca or self.certificate):
            raise UsageError("plaintext: with it neither ca nor certificate has a use; give one of them")

    def tls(self, address: str) -> bool:
        """Whether the connection to this address is TLS."""
        if self.insecure_plaintext:
            return False
        return not is_local(address) or self.ca is not None or self.certificate is not None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of a call: the site's name, token and key, and its process."""
        told = [(PROCESS_KEY, self.process)]
        if self.name is not None:
            told.append((SITE_KEY, self.name))
        if self.token is not None:
            told.append((TOKEN_KEY, f"Bearer {self.token}"))
        if self.renewal_key:
            told.append((RENEWS_KEY, self.renewal_key))
        return tuple(told)

    @property
    def site(self) -> str | None:
        """The site's name, as it says or proves it. None means that nothing here has it.

        Raises:
            UsageError: The certificate cannot be read.
        """
        if self.name is not None:
            return self.name
        if self.token is not None and ":" in self.token:
            return split_token(self.token)[0]
        names = () if self.certificate is None else names_in(pem(self.certificate))
        return names[0] if len(names) == 1 else None

    @property
    def authority(self) -> str:
        """The authority that the site trusts, in words."""
        return "the site's kit" if isinstance(self.ca, bytes) else f"access.ca = {self.ca}"

    @property
    def shown(self) -> str:
        """The certificate that the site shows, in words."""
        if isinstance(self.certificate, bytes):
            return "the certificate in the site's kit"
        return f"access.certificate = {self.certificate}"


def pem(source: Path | bytes) -> bytes:
    """A certificate or a key, of a file or as it is. Raises `UsageError` if there is none."""
    if isinstance(source, bytes):
        return source
    try:
        data = read_bytes(source)
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {reason_of(error)}") from None
    if b"-----BEGIN " not in data:
        raise UsageError(f"{source} is not a PEM file: it has no line with -----BEGIN")
    return data


def certificate_ends(path: Path) -> float | None:
    """When a certificate expires, in seconds since 1970; None for a file that is being replaced."""
    try:
        return ends_at(pem(path))
    except UsageError:
        return None


@dataclass(frozen=True, slots=True)
class VerifiedIdentity:
    """A site that has proved its name.

    Attributes:
        site: The name.
        valid: Says whether what it has shown still counts.
        token: The token that it has shown. None means that it needs none.
    """

    site: str
    valid: Callable[[], bool]
    token: SiteToken | None = None


class Authenticator:
    """Authenticates the site of a connection. The audit takes what is done to tokens; None means no audit.

    Raises `RunError` if the tokens file is damaged at the start, `UsageError` if the revocation list is.
    """

    def __init__(self, credentials: ServerCredentials, audit: AuditLog | None = None) -> None:
        audit = audit or AuditLog()
        self._certificates, self._own = credentials.client_ca is not None, credentials.certificate
        self._tokens = None
        if credentials.tokens is not None:
            self._tokens = Tokens(credentials.tokens, on_change=audit.tokens)
            if self._tokens.empty:
                log.warning(
                    "tokens = %s has no token: no site can log in before offbeat enrol makes one",
                    credentials.tokens,
                )
        self._any_name = credentials.insecure_any_name
        self._revoked: RevocationList | None = None
        if (revoked := credentials.revoked) is not None and credentials.client_ca is not None:
            event = {"action": "config.reload", "files": "the certificates that are revoked"}
            self._revoked = RevocationList(
                revoked, credentials.client_ca, lambda: audit.record(operator(owner(revoked)), event)
            )

    def admit(self, metadata: Mapping[str, str], identity: PeerIdentity) -> VerifiedIdentity:
        """The site of a call with this metadata and certificate. Raises `ProtocolError`."""
        if FORWARDED_KEY in metadata and not (self._certificates or self._tokens or self._any_name):
            raise _refusal(
                "a proxy passes this site on, and this server asks sites of its own machine for no proof: "
                "its operator must give --tokens, or --insecure any-name"
            )
        token: SiteToken | None = None
        names = {metadata[SITE_KEY]} if SITE_KEY in metadata else set[str]()
        if self._certificates:
            names.add(self._certified(identity))
        number = self._not_revoked(identity)
        if self._tokens is not None:
            token = SiteToken(self._tokens, _bearer(metadata))
            names.add(_proved(token))
        if not names:
            raise _refusal(f"no name: this server asks for no proof, but {SITE_KEY} must be given")
        site = min(names)
        if not is_name(site):
            raise _refusal("the site's name is not one that a site can have")
        if len(names) > 1:
            raise _refusal("the names that the site gives and proves are not one and the same")
        return VerifiedIdentity(site, lambda: self._is_valid(number, token), token)

    def enrolled(self) -> frozenset[str] | None:
        """Names of the sites that have a token; None where sites need none."""
        return None if self._tokens is None else self._tokens.sites()

    def expires_in(self) -> dict[str, float]:
        """Seconds until the last token of a site expires, and the server's certificate, of those that do."""
        seconds: dict[str, float] = {}
        if self._tokens is not None:
            now = self._tokens.clock()
            for site, stored in self._tokens.stored().items():
                if all(each.expires for each in stored):
                    seconds[site] = max(each.expires for each in stored) - now
        if self._own is not None and (ends := certificate_ends(self._own)) is not None:
            seconds[SERVER_OWNER] = ends - time.time()
        return seconds

    def samples(self, site: str) -> SampleRange | None:
        """The numbers of samples that a site may have, as it is enrolled; None means any."""
        return None if self._tokens is None else self._tokens.samples(site)

    def _certified(self, identity: PeerIdentity) -> str:
        """The one name in a certificate."""
        shown = identity.get(CERTIFICATE_KEY, [b""])[0]
        if self._is_own(shown):
            raise _refusal("the server's own certificate is no site's: have one signed for the site")
        names = names_in(shown)
        if len(names) != 1:
            raise _refusal(
                f"the site's certificate names {len(names)} sites: have one signed with one common name, "
                "or with none and one alternative name (DNS)"
            )
        return names[0]

    def _is_own(self, certificate: bytes) -> bool:
        """Whether this is the server's certificate, as its file is now."""
        try:
            return self._own is not None and is_same(certificate, pem(self._own))
        except UsageError:
            # The certificate's file is being replaced.
            return False

    def _not_revoked(self, identity: PeerIdentity) -> int:
        """The serial number of the certificate that was shown; 0 if no list revokes any."""
        if self._revoked is None:
            return 0
        try:
            number = serial(identity.get(CERTIFICATE_KEY, [b""])[0])
        except ValueError:
            raise _refusal("the site's certificate has no serial number") from None
        if number in self._revoked:
            raise ProtocolError(
                "the site's certificate is revoked: ask the server's operator for another", "revoked"
            )
        return number

    def _is_valid(self, number: int, token: SiteToken | None) -> bool:
        revoked = self._revoked is not None and number in self._revoked
        return not revoked and (token is None or token.valid)


def _proved(token: SiteToken) -> str:
    """The name that a token proves. Raises `ProtocolError` for one that is not valid.

    Only a token that somebody has ended is refused as revoked: a file that does not have a token may be one
    of before.
    """
    if (act := token.ended) is not None:
        how = "revoked" if act.by else "renewed, and its renewal was used"
        raise ProtocolError(
            f"the token of site {act.site} was {how} on {_time(act.at)}: ask the server's operator for "
            f"another{'' if act.by else ', if the site has not the renewed one'}",
            "revoked",
        )
    if token.site is None or not (token.valid or token.expires):
        raise _refusal("the token is not valid: ask the server's operator to enrol the site")
    if not token.valid:
        raise _refusal(
            f"the token of site {token.site} expired on {_time(token.expires)}: ask the server's operator "
            "for another"
        )
    return token.site


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _bearer(metadata: Mapping[str, str]) -> str:
    scheme, _, token = metadata.get(TOKEN_KEY, "").partition(" ")
    if scheme != "Bearer" or not token or len(token) > _MOST_TOKEN:
        raise _refusal("no token: this server asks for one that enrol has made")
    return token


def _refusal(reason: str) -> ProtocolError:
    return ProtocolError(reason, "credential")


def _pair(one: str, first: Path | bytes | None, other: str, second: Path | bytes | None) -> None:
    if (first is None) != (second is None):
        given, missing = (one, other) if second is None else (other, one)
        raise UsageError(f"{given} without {missing}: give both or neither")
