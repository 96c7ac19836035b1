"""How a site's commands reach its server: by their options, or by a kit."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.tokens import read_token
from offbeat.core.errors import UsageError

if TYPE_CHECKING:
    from offbeat.net.auth.credentials import SiteCredentials
    from offbeat.net.client.reconnecting import Connect
    from offbeat.net.kit import Kit, KitFile

KitOption = Annotated[
    Path | None,
    typer.Option(
        "--kit", metavar="FILE", help="what `offbeat enrol -o` made: address, CA, name and token in one"
    ),
]
Address = Annotated[
    str | None,
    typer.Argument(
        metavar="ADDRESS", help="the server: HOST:PORT, [IPV6]:PORT or unix:PATH; a kit has it already"
    ),
]


@dataclass(frozen=True, slots=True)
class Access:
    """How a site reaches its server, as its options say or as its kit has it.

    Attributes:
        address: The server's address. None means the kit's.
        kit: The kit's file. None means that there is none.
        name: The site's name.
        token_file: The file of its token.
        ca: Who signs the server's certificate.
        certificate: The site's certificate.
        key: The certificate's key.
        proxy: URL of the proxy on the way.
        insecure_plaintext: Whether there is no TLS beyond loopback.
        state: The directory of the site's state, which has the key for which a kit's token is renewed.

    Raises:
        UsageError: There is neither an address nor a kit, or the kit cannot be used, or an option says what
            it has.
    """

    address: str | None
    kit: Path | None
    name: str | None
    token_file: Path | None
    ca: Path | None
    certificate: Path | None
    key: Path | None
    proxy: str | None
    insecure_plaintext: bool
    state: Path | None = None

    def __post_init__(self) -> None:
        if self.kit is None:
            if self.address is None:
                raise UsageError("give ADDRESS, the server's HOST:PORT, or --kit FILE, which has it")
            return
        kit = self._file(self.kit).read_valid(time.time())
        given = {
            "--name": self.name != kit.name and self.name, "--token-file": self.token_file, "--ca": self.ca,
            "--insecure-plaintext": self.insecure_plaintext,
        }  # fmt: skip
        if options := [option for option, value in given.items() if value]:
            raise UsageError(
                f"--kit {self.kit} has what {', '.join(options)} would say: leave one of them out"
            )
        self._file(self.kit).warn_if_open()

    @property
    def place(self) -> str:
        """The server's address."""
        return self.address or self._kit.address

    @property
    def site(self) -> str | None:
        """The site's name, where it is known here."""
        return self.name if self.kit is None else self._kit.name

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the kit's authority, in words."""
        return self._kit.fingerprint or "none: the kit trusts the authorities that the system trusts"

    def connect(self) -> "Connect":
        """What connects to the server."""
        from offbeat.net.client.connector import connector
        from offbeat.net.client.kit_connector import KitConnector

        if self.kit is None:
            return connector(self.place, credentials=self.credentials(), proxy=self.proxy)
        file = self._file(self.kit)
        return KitConnector(file, self.place, self.certificate, self.key, self.proxy, self.state)

    def credentials(self) -> "SiteCredentials":
        """The site's credentials."""
        if self.kit is not None:
            return self._kit.credentials(self.certificate, self.key)
        return self.credentials_of(self.name, self.token_file)

    def credentials_of(self, name: str | None, token_file: Path | None) -> "SiteCredentials":
        """The credentials of another name at the same server."""
        from offbeat.net.auth.credentials import SiteCredentials

        token = None if token_file is None else read_token(token_file)
        ca = self.ca if self.kit is None else self._kit.credentials().ca
        return SiteCredentials(name, token, ca, self.certificate, self.key, self.insecure_plaintext)

    @property
    def _kit(self) -> "Kit":
        assert self.kit is not None
        return self._file(self.kit).read()

    @staticmethod
    def _file(path: Path) -> "KitFile":
        from offbeat.net.kit import KitFile

        return KitFile(path)
