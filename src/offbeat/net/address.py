"""Addresses HOST:PORT, and whether one is this machine's own."""

from ipaddress import ip_address

from offbeat.core.errors import UsageError


def split(address: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT" or "[IPV6]:PORT". Raises `UsageError`."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else -1
    if not (colon and host and 0 <= number <= 65535) or (":" in host and not bracketed):
        raise UsageError(
            f"address {address!r}: it must be HOST:PORT or [IPV6]:PORT, such as 127.0.0.1:8443, "
            "with a port from 0 to 65535"
        )
    return host, number


def is_loopback(address: str) -> bool:
    """Whether only this machine can be at the other end."""
    host = split(address)[0]
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
