"""Addresses HOST:PORT and unix:PATH, whether one is this machine's own, and names of sites."""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from offbeat.core.errors import UsageError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""Allowed names of sites."""


UNIX = "unix:"
"""Start of the address of a Unix socket."""
_AUTHORITY = re.compile(r"(?:\[([^][@/?#\\\s]+)\]|([^][:@/?#\\\s]+))(?::[0-9]{0,5})?")
_LONGEST_PATH = 103
"""Bytes of a Unix socket's path: macOS takes 103, Linux 107."""


def socket_path(address: str) -> str | None:
    """The path of "unix:PATH"; None for an address of another kind.

    Raises:
        UsageError: The path is empty, or longer than a socket's can be.
    """
    if not address.startswith(UNIX):
        return None
    path = address.removeprefix(UNIX)
    if not path or "\0" in path or len(path.encode()) > _LONGEST_PATH:
        raise UsageError(
            f"address {address!r}: it must be unix:PATH with a path of 1 to {_LONGEST_PATH} bytes, such as "
            "unix:/run/offbeat/heart.sock"
        )
    return path


def is_local(address: str) -> bool:
    """Whether only this machine can be at the other end of "HOST:PORT" or "unix:PATH".

    Raises:
        UsageError: The address is neither.
    """
    return socket_path(address) is not None or is_loopback(split(address)[0])


def split(address: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[IPV6]:PORT".

    Raises:
        UsageError: The address is neither.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else -1
    well_formed = _is_ipv6(host) if bracketed else ":" not in host
    if not (colon and host and 0 <= number <= 65535 and well_formed):
        raise UsageError(
            f"address {address!r}: it must be HOST:PORT or [IPV6]:PORT, such as 127.0.0.1:8443, "
            "with a port from 0 to 65535"
        )
    return host, number


def host_of(authority: str) -> str:
    """The host of "HOST", "HOST:PORT", "[IPV6]" or "[IPV6]:PORT", without brackets; "" for anything else.

    A host that is only a part of another one, such as [::1].example, is no host. In a URL, what is before an
    @ is no part of an authority.
    """
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return ""
    bracketed, name = found.groups()
    return name or (bracketed if _is_ipv6(bracketed) else "")


def is_loopback(host: str) -> bool:
    """Whether only this machine can be at the other end; a name other than localhost may be anything.

    Args:
        host: A name or an address; one of IPv6 may be in brackets. What `ipaddress` does not take for an
            address, such as 127.1, counts as a name.
    """
    host = host_of(host) if host.startswith("[") and host.endswith("]") else host
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def plain(host: str) -> str:
    """An address without its zone, and one of IPv4 that IPv6 contains as such; a name as it is."""
    return str(_address(host.partition("%")[0]) or host)


def network(host: str) -> str:
    """The network that counts as one address: an address of IPv4, or 64 bits of IPv6."""
    host = plain(host)
    return str(ip_network(f"{host}/64", strict=False)) if _is_ipv6(host) else host


def _is_ipv6(host: str) -> bool:
    try:
        return ip_address(host).version == 6
    except ValueError:
        return False


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """The address, one of IPv4 that IPv6 contains as such; None for a name, and for one with a zone."""
    if "%" in host:
        return None
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_name(name: str) -> bool:
    """Whether a site may have this name."""
    return NAME.fullmatch(name) is not None


def check_name(option: str, name: str) -> None:
    """Raises `UsageError`, which begins with `option`, for a name that no site may have."""
    if not is_name(name):
        raise UsageError(
            f"{option} {name!r}: a name has 1 to 63 letters, digits, dots, underscores and hyphens of ASCII, "
            "and begins with a letter or digit"
        )
