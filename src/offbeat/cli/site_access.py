"""How a site's commands reach its server: by a kit, or by an address and the keys `access.…` of `--set`."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import urlsplit

import typer

from offbeat.cli.keys import KeyGroup
from offbeat.cli.tokens import read_token
from offbeat.core.errors import UsageError
from offbeat.documents import user_path

if TYPE_CHECKING:
    from offbeat.net.auth.credentials import SiteCredentials
    from offbeat.net.client.access_options import AccessOptions
    from offbeat.net.client.reconnecting import Connect
    from offbeat.net.kit import Kit, KitFile

Target = Annotated[
    str,
    typer.Argument(
        metavar="KIT|ADDRESS",
        help="the file of `offbeat enrol -o`, or the server: HOST:PORT, [IPV6]:PORT or unix:PATH",
    ),
]
ACCESS = KeyGroup("offbeat.net.client.access_options", "AccessOptions")
_IN_KIT = ("ca", "token_file", "plaintext")
"""What a kit has, or rules out."""


@dataclass(frozen=True, slots=True)
class Access:
    """How a site reaches its server, as its kit has it and its options say.

    Attributes:
        place: The server's address.
        name: The site's name. None means that nothing here has it.
        kit: The file of the kit. None means that there is none.
        options: The keys `access.…`.
        state: The directory of the site's state, which has the key for which a kit's token is renewed.
    """

    place: str
    name: str | None
    kit: "KitFile | None"
    options: "AccessOptions"
    state: Path | None = None

    @classmethod
    def of(
        cls, target: str, name: str | None, settings: Mapping[str, Any], state: Path | None = None
    ) -> Self:
        """Read what a command is given.

        Args:
            target: The kit's file, or the server's address.
            name: The value of `--name`.
            settings: The keys `access.…` of `--set`.
            state: The directory of the site's state.

        Raises:
            UsageError: The kit cannot be used, or an option says what it has.
        """
        from offbeat.core.validation import validated
        from offbeat.net.client.access_options import AccessOptions

        options = validated(AccessOptions, settings, "--set access")
        _check_proxy(options.proxy)
        path = user_path(target)
        if path.is_file():
            return cls._of_kit(path, name, options, state)
        if ":" not in target:
            raise UsageError(
                f"{target} is neither a file nor an address: give the site's kit, or the server's HOST:PORT, "
                "[IPV6]:PORT or unix:PATH"
            )
        if options.address is not None:
            raise UsageError(
                f"access.address = {options.address} is for a kit, and {target} is an address: leave one out"
            )
        return cls(target, name, None, options, state)

    @classmethod
    def _of_kit(cls, path: Path, name: str | None, options: "AccessOptions", state: Path | None) -> Self:
        from offbeat.net.kit import KitFile

        file = KitFile(path)
        kit = file.read_valid(time.time())
        has = (*_IN_KIT, *(() if kit.certificate is None else ("certificate", "key")))
        given = [f"access.{key}" for key in has if getattr(options, key)]
        given += ["--name"] if name not in (None, kit.name) else []
        if given:
            raise UsageError(f"{path} has what {', '.join(given)} would say: leave one of them out")
        file.warn_if_open()
        return cls(options.address or kit.address, kit.name, file, options, state)

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the kit's authority, in words; None without a kit."""
        if self.kit is None:
            return None
        return self._read.fingerprint or "none: the kit trusts the authorities that the system trusts"

    def check_way(self) -> None:
        """Go the way to the server once, as a connection that fails would, and need no PyTorch for it.

        Raises:
            UsageError: The site's options cannot work.
            RunError: The server, or the proxy, is set up so that no attempt can work.
        """
        from offbeat.net.probe import UnreachableError, probe
        from offbeat.net.proxy import proxy_for

        try:
            probe(self.place, self.credentials(), proxy_for(self.place, self.options.proxy))
        except UnreachableError as error:
            if (final := error.final) is not None:
                raise final from None

    def connect(self) -> "Connect":
        """What connects to the server."""
        from offbeat.net.client.connector import connector
        from offbeat.net.client.kit_connector import KitConnector

        proxy = self.options.proxy
        if self.kit is None:
            return connector(self.place, credentials=self.credentials(), proxy=proxy)
        return KitConnector(self.kit, self.place, *self._pair, proxy, self.state)

    def credentials(self) -> "SiteCredentials":
        """The site's credentials."""
        from offbeat.net.auth.credentials import SiteCredentials

        if self.kit is not None:
            return self._read.credentials(*self._pair)
        options, file = self.options, _path(self.options.token_file)
        token = None if file is None else read_token(file, "access.token_file")
        return SiteCredentials(self.name, token, _path(options.ca), *self._pair, options.plaintext)

    @property
    def _pair(self) -> tuple[Path | None, Path | None]:
        """The files of the site's certificate and of its key."""
        return _path(self.options.certificate), _path(self.options.key)

    @property
    def _read(self) -> "Kit":
        assert self.kit is not None
        return self.kit.read()


def _path(text: str | None) -> Path | None:
    return None if text is None else user_path(text)


def _check_proxy(url: str | None) -> None:
    """Refuse a password in a proxy's URL: all users of the machine can read the options of a process."""
    try:
        has_password = url is not None and urlsplit(url).password is not None
    except ValueError:
        # What reads the address says what is wrong with it.
        return
    if has_password:
        raise UsageError(
            "access.proxy has a password, which other users of this machine can read: leave it out, and set "
            "the environment variable OFFBEAT_PROXY_PASSWORD"
        )
