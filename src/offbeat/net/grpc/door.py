"""Closes connections of the server's port that have no credential: after a time, or where there are too many.

gRPC accepts connections itself and says nothing of one before its first call, so the door looks now and then
at the sockets of this process. A connection of this port whose address is not one of an admitted call is
shut down; gRPC then finds it closed, and closes its own end. What is sent and received passes nobody else.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import unquote

from offbeat.net import descriptors
from offbeat.net.address import network, plain
from offbeat.net.refusal_log import RefusalLog

Peer = tuple[str, int]
"""Address and port of the other end."""
SHARE = 4
"""One address may have one in `SHARE` of the connections, without a credential."""
_PAUSE = 1.0  # s between two looks, at most
_LOG = logging.getLogger("offbeat.net")


class Door:
    """Watches a port.

    Args:
        most: How many connections gRPC lets it have.
        deadline: Seconds that a connection may be open without a credential.
        refusals: Counts those that are closed.
    """

    def __init__(self, most: int, deadline: float, refusals: RefusalLog) -> None:
        self.most, self._deadline, self._refusals = most, deadline, refusals
        self._admitted: Counter[Peer] = Counter()
        # Connections without a credential, the oldest first.
        self._since: dict[Peer, float] = {}
        self._full = False

    @contextmanager
    def admitted(self, peer: str) -> Iterator[None]:
        """A call of this peer, in gRPC's words, has shown a credential; the context is the call.

        Afterwards its connection may begin another one, or leave.
        """
        name = peer_of(peer)
        self._admitted[name] += 1
        try:
            yield
        finally:
            self._admitted[name] -= 1
            if not self._admitted[name]:
                del self._admitted[name]

    async def watch(self, port: int) -> None:
        """Look after the connections of a port until cancelled."""
        while True:
            await asyncio.sleep(min(_PAUSE, self._deadline / 4))
            self.look(connections(port), asyncio.get_running_loop().time())

    def look(self, connections: Mapping[Peer, int], now: float) -> None:
        """Close connections that lack a credential for too long, and those beyond a limit.

        Args:
            connections: The connections, and their descriptors.
            now: Seconds of the event loop's clock.
        """
        waiting = connections.keys() - self._admitted.keys()
        self._since = {peer: since for peer, since in self._since.items() if peer in waiting}
        self._since |= dict.fromkeys(waiting - self._since.keys(), now)
        share = max(1, self.most // SHARE)
        crowd, uncredentialed = len(connections), Counter(network(host) for host, _ in self._since)
        for peer, since in list(self._since.items()):
            origin = network(peer[0])
            if now - since > self._deadline:
                kind, why = "deadline", f"no credential within {self._deadline:g} s"
            elif uncredentialed[origin] > share:
                kind, why = "address", f"{origin} has more than {share} connections without a credential"
            elif crowd > self.most - share:
                kind, why = "full", f"of {self.most} connections too few are free, and it has no credential"
            else:
                continue
            crowd, uncredentialed[origin] = crowd - 1, uncredentialed[origin] - 1
            del self._since[peer]
            shut_down(connections[peer], peer)
            self._refusals.add(kind, peer_text(peer), why)
        self._warn_when_full(len(connections))

    def _warn_when_full(self, found: int) -> None:
        """Warn that gRPC refuses connections beyond the limit at once, without a report."""
        full = found >= self.most
        if full and not self._full:
            _LOG.warning(
                "%d connections are open, more are not allowed: new ones are closed uncounted", found
            )
        self._full = full


def connections(port: int) -> dict[Peer, int]:
    """This process's connections of a port: the other end's address, and the descriptor."""
    by_peer = {}
    for descriptor in descriptors.opened():
        with suppress(OSError):
            view = socket.socket(fileno=descriptor)
            try:
                if _port(view.getsockname()) == port:
                    by_peer[_peer(view.getpeername())] = descriptor
            finally:
                # The socket belongs to gRPC, so it must not be closed here.
                view.detach()
    return by_peer


def shut_down(descriptor: int, peer: Peer) -> None:
    """Shut a connection down, if the descriptor is still its own."""
    with suppress(OSError):
        view = socket.socket(fileno=descriptor)
        try:
            if _peer(view.getpeername()) == peer:
                view.shutdown(socket.SHUT_RDWR)
        finally:
            view.detach()


def peer_of(words: str) -> Peer:
    """The peer that gRPC calls "ipv4:HOST:PORT" or "ipv6:%5BHOST%5D:PORT"."""
    host, _, port = unquote(words.partition(":")[2]).rpartition(":")
    return plain(host.strip("[]")), int(port) if port.isdigit() else 0


def peer_text(peer: Peer) -> str:
    """A peer as the log names it."""
    return f"{peer[0]} port {peer[1]}"


def _peer(name: object) -> Peer:
    return (plain(str(name[0])), int(name[1])) if isinstance(name, tuple) and len(name) > 1 else ("", 0)


def _port(name: object) -> int:
    return int(name[1]) if isinstance(name, tuple) and len(name) in (2, 4) else 0
