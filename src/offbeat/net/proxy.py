"""The HTTP proxy on a site's way to its server: a tunnel by CONNECT, with basic authentication."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from urllib.parse import quote, unquote, urlsplit

from offbeat.core.errors import UsageError
from offbeat.net.address import host_of, is_loopback, socket_path, split

ENVIRONMENT = "env"
"""The word with which the environment's proxy is taken."""
PASSWORD_VARIABLE = "OFFBEAT_PROXY_PASSWORD"
_WHAT = "give http://HOST:PORT or http://USER@HOST:PORT"


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy.

    Attributes:
        host: Its host.
        port: Its port.
        user: The user that it asks for. None means that it asks for none.
        password: The user's password.
    """

    host: str
    port: int
    user: str | None = None
    password: str = field(default="", repr=False)

    @classmethod
    def parse(
        cls, url: str, environ: Mapping[str, str] | None = None, option: str = "access.proxy"
    ) -> "Proxy":
        """The proxy of a URL; a user without a password has that of `OFFBEAT_PROXY_PASSWORD`.

        Raises:
            UsageError: It is no URL of an HTTP proxy. The error does not repeat the URL, which may have a
                password.
        """
        environ = os.environ if environ is None else environ
        text = url if "://" in url else f"http://{url}"
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise UsageError(f"{option} is no URL of a proxy: {_WHAT}") from None
        if parts.scheme != "http":
            raise UsageError(
                f"{option} has the scheme {parts.scheme!r}, and only an HTTP proxy is supported: {_WHAT}; "
                "for SOCKS, NTLM or Kerberos run a local HTTP proxy that speaks it, such as cntlm"
            )
        host = host_of(parts.netloc.rpartition("@")[2])
        if not host or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise UsageError(f"{option} is no URL of a proxy: {_WHAT}")
        user = None if parts.username is None else unquote(parts.username)
        password = unquote(parts.password or "")
        if user is None and password:
            raise UsageError(f"{option} has a password and no user: {_WHAT}")
        if user is not None and parts.password is None:
            password = environ.get(PASSWORD_VARIABLE, "")
        if user is not None and (":" in user or any(c < " " for c in user + password)):
            raise UsageError(f"{option}: its user has no colon, and neither it nor its password a line break")
        return cls(host.lower(), 3128 if port is None else port, user, password)

    @property
    def place(self) -> str:
        """Host and port, without user and password."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL with user and password; for gRPC alone, never for a log."""
        if self.user is None:
            return f"http://{self.place}"
        return f"http://{quote(self.user, safe='')}:{quote(self.password, safe='')}@{self.place}"


def proxy_for(address: str, option: str | None, environ: Mapping[str, str] | None = None) -> Proxy | None:
    """The proxy on the way to an address; None means none.

    Args:
        address: The server's address.
        option: A proxy's URL, "env" for that of `https_proxy` in the environment, or None for none. Hosts of
            `no_proxy` are reached without it.
        environ: The environment. None means that of this process.

    Raises:
        UsageError: A URL is no HTTP proxy's, or "env" is given and the environment has none.
    """
    environ = os.environ if environ is None else environ
    if option is None:
        return None
    if socket_path(address) is not None:
        if option == ENVIRONMENT:
            return None
        raise UsageError(f"access.proxy has no use for {address}: leave it out with a Unix socket")
    host = split(address)[0]
    if option != ENVIRONMENT:
        proxy = Proxy.parse(option, environ)
        return None if bypassed(host, environ) else proxy
    if is_loopback(host) or bypassed(host, environ):
        return None
    name = environment_name(environ)
    if name is None:
        raise UsageError(
            "access.proxy=env: the environment has no https_proxy; set it, or give the proxy's URL"
        )
    return Proxy.parse(environ[name], environ, f"{name} in the environment")


def environment_name(environ: Mapping[str, str]) -> str | None:
    """The name of the variable with the environment's proxy; None without such a variable."""
    return next((name for name in ("https_proxy", "HTTPS_PROXY") if environ.get(name)), None)


def bypassed(host: str, environ: Mapping[str, str]) -> bool:
    """Whether `no_proxy` has this host: its name, the end of its name, its network, or `*`.

    gRPC reads the variables in lower case itself, and goes directly where one of them has the host.
    """
    names = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
    entries = [entry.strip() for name in names for entry in environ.get(name, "").split(",")]
    return any(_matches(host.lower(), entry.lower()) for entry in entries if entry)


def _matches(host: str, entry: str) -> bool:
    if entry == "*" or host.endswith(entry):
        return True
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        return False
