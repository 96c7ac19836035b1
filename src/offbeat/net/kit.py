"""Kits: one file with all that a site needs to reach its server, and to prove who it is.

A kit is a secret, since it has the site's token. It has no code, and nothing in it changes what a site
allows: the policy in it is a text for the site's operator to read and to give with `--policy`.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from offbeat.core.errors import UsageError, reason_of
from offbeat.documents import read_text
from offbeat.net.address import check_name, split
from offbeat.net.auth.ca import fingerprints
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.auth.tokens import check_token, split_token
from offbeat.runs.durable_files import write_private

log = logging.getLogger(__name__)
VERSION = 1
MOST_BYTES = 2**17
"""Bytes of a kit, at most."""
MOST_AUTHORITIES = 4
"""Certificates of authorities in a kit, at most."""
_LATEST = 253_402_300_800.0  # the year 10000
_Short = Annotated[str, msgspec.Meta(max_length=1000)]
_Long = Annotated[str, msgspec.Meta(max_length=2**16)]


class Kit(msgspec.Struct, frozen=True, kw_only=True):
    """What a kit has.

    Attributes:
        offbeat_kit: The version of its format.
        address: Where the server is: "HOST:PORT".
        name: The site's name.
        token: Its token.
        expires: When the token expires, in seconds since 1970. None means never.
        ca: The certificates (PEM) of the authority that signs the server's. None means the authorities that
            the system trusts.
        fingerprint: The SHA-256 fingerprints of all certificates in `ca`, to be compared by telephone, with
            commas between. None without one.
        certificate: The site's own certificate (PEM), which some servers ask for beside the token. None means
            none.
        key: The certificate's key (PEM).
        policy: A template of the site's policy (YAML).
        made_by: The version of Offbeat that has made it.
        previous: The token before the last renewal; empty before the first.
    """

    offbeat_kit: int
    address: _Short
    name: _Short
    token: _Short
    expires: float | None = None
    ca: _Long | None = None
    fingerprint: _Short | None = None
    certificate: _Long | None = None
    key: _Long | None = None
    policy: _Long = ""
    made_by: _Short = ""
    previous: _Short = ""

    def __repr__(self) -> str:
        return f"Kit(name={self.name!r}, address={self.address!r})"

    def credentials(self, certificate: Path | None = None, key: Path | None = None) -> SiteCredentials:
        """The site's credentials, with a certificate in place of the kit's if one is given."""
        # Only what the fingerprint covers is trusted, whatever else TLS would read in the text.
        ca = None if self.ca is None else _as_pem(authorities_in(self.ca))
        if certificate is None and key is None and self.certificate is not None and self.key is not None:
            return SiteCredentials(self.name, self.token, ca, self.certificate.encode(), self.key.encode())
        return SiteCredentials(self.name, self.token, ca, certificate, key)

    @property
    def ends(self) -> str:
        """When the token expires, in words."""
        return (
            "never"
            if self.expires is None
            else f"{datetime.fromtimestamp(self.expires, UTC):%Y-%m-%d %H:%M} UTC"
        )


class _Header(msgspec.Struct):
    """What kits of every format have."""

    offbeat_kit: int


@dataclass(frozen=True, slots=True)
class KitFile:
    """A site's kit in its file, which a renewal of the token replaces.

    Attributes:
        path: The file.
    """

    path: Path

    def read(self) -> Kit:
        """The kit as it is now.

        Raises:
            UsageError: The file is not there, is no kit, or one of a later format.
        """
        kit = self._decode(self._document())
        self._check(kit)
        return kit

    def read_valid(self, now: float) -> Kit:
        """The kit, whose token has not expired. Raises `UsageError`, as `read` does too."""
        kit = self.read()
        if kit.expires is not None and kit.expires <= now:
            raise UsageError(
                f"{self.path} expired on {kit.ends}: ask the operator of {kit.address} for a new kit of site "
                f"{kit.name}"
            )
        return kit

    def warn_if_open(self) -> None:
        """Warn in the log where others can read the file."""
        if os.name == "posix" and self.path.stat().st_mode & 0o077:
            log.warning(
                "others can read %s, which proves who this site is: chmod go= %s", self.path, self.path
            )

    @property
    def writable(self) -> bool:
        """Whether a renewal can be stored."""
        return os.access(self.path, os.W_OK) and os.access(self.path.resolve().parent, os.W_OK | os.X_OK)

    def store(self, token: str, expires: float) -> None:
        """Replace the token, durably; fields of the file that this version does not know stay.

        Raises:
            UsageError: The file cannot be read or written, or the token is none of this site.
        """
        document = self._document()
        kit = self._decode(document)
        if split_token(token)[0] != kit.name:
            raise UsageError(f"{self.path} is of site {kit.name}, and the renewed token is another's")
        self._check(msgspec.structs.replace(kit, token=token, expires=expires))
        fields: dict[str, Any] = msgspec.json.decode(document)
        fields |= {"token": token, "expires": expires, "previous": kit.token}
        write_kit(self.path.resolve(), fields)

    def _document(self) -> str:
        try:
            return read_text(self.path, MOST_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise UsageError(
                f"{self.path} cannot be read: {reason}; give a kit, a file of offbeat enrol -o"
            ) from None

    def _decode(self, document: str) -> Kit:
        try:
            version = msgspec.json.decode(document, type=_Header).offbeat_kit
            if version > VERSION:
                raise UsageError(
                    f"{self.path} is a kit of format {version}, and this version of Offbeat reads {VERSION}: "
                    "upgrade Offbeat here"
                )
            return msgspec.json.decode(document, type=Kit)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._damaged(str(error) or "it is nested too deep") from None

    def _check(self, kit: Kit) -> None:
        """Check that the fields fit each other. Raises `UsageError`."""
        try:
            check_name("name", kit.name)
            check_token(kit.token, "enrol")
            if split_token(kit.token)[0] != kit.name:
                raise UsageError("its token is not of its site")
            if split(kit.address)[1] == 0:
                raise UsageError("its address has no port")
            if kit.expires is not None and not 0 <= kit.expires < _LATEST:
                raise UsageError("its expiry is no time")
            texts = (kit.address, kit.made_by, kit.policy.replace("\n", ""))
            # These texts are printed to a terminal.
            if not all(text.isprintable() for text in texts):
                raise UsageError("it has characters that are not printable")
            if (kit.certificate is None) != (kit.key is None):
                raise UsageError("of its certificate and its key it has one alone")
            if kit.ca is not None and kit.fingerprint != fingerprints(authorities_in(kit.ca)):
                raise UsageError("its certificates have not its fingerprint")
        except UsageError as error:
            raise self._damaged(str(error)) from None

    def _damaged(self, why: str) -> UsageError:
        return UsageError(
            f"{self.path} is no whole kit ({why}): copy it again from where it was made, or ask the server's "
            "operator for another"
        )


def make_kit(
    address: str,
    token: str,
    expires: float | None,
    ca: str | None,
    policy: str,
    made_by: str,
    own: tuple[str, str] | None = None,
) -> Kit:
    """A kit of a token's site, with its `own` certificate and key. Raises as `authorities_in`."""
    found = None if ca is None else authorities_in(ca)
    return Kit(
        offbeat_kit=VERSION, address=address, name=split_token(token)[0], token=token, expires=expires,
        ca=None if found is None else _as_pem(found).decode(),
        fingerprint=None if found is None else fingerprints(found), policy=policy, made_by=made_by,
        certificate=None if own is None else own[0], key=None if own is None else own[1],
    )  # fmt: skip


def write_kit(path: Path, kit: Kit | dict[str, Any]) -> None:
    """Write a kit, durably and readable by its owner only. Raises `UsageError`."""
    try:
        write_private(path, msgspec.json.format(msgspec.json.encode(kit), indent=1) + b"\n")
    except OSError as error:
        raise UsageError(f"the kit {path} cannot be written: {reason_of(error)}") from None


def authorities_in(ca: str) -> list[x509.Certificate]:
    """The certificates of the authorities of a kit, of their text (PEM). Raises `UsageError`."""
    try:
        found = x509.load_pem_x509_certificates(ca.encode())
    except ValueError as error:
        raise UsageError(f"its certificate cannot be read: {error}") from None
    if len(found) > MOST_AUTHORITIES:
        raise UsageError(
            f"it has {len(found)} certificates of authorities: nobody compares so many fingerprints, so give "
            f"the {MOST_AUTHORITIES} or fewer that may sign the server's"
        )
    return found


def _as_pem(certificates: Sequence[x509.Certificate]) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)
