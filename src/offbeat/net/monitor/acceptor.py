"""Accepts the page's connections, up to a limit in all and for each address.

Where there is no room, the oldest connection makes it whose requests were not admitted yet, so that a flood
of connections does not keep out somebody who sends a request at once.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from offbeat.net.address import network
from offbeat.net.refusal_log import RefusalLog
from offbeat.vectors.allocator import trim

DEADLINE = 10.0
"""Seconds from a connection to a request that is admitted."""
SHARE = 4
"""One address may have one in `SHARE` of the connections, before its requests are admitted."""
# Number of connections that are accepted before the event loop does anything else.
_AT_ONCE = 16
_PAUSE = 0.1  # s after the system could not accept
Peer = tuple[Any, ...]
"""The other end's address, as the system gives it."""


@dataclass(slots=True)
class _Open:
    """One connection; asyncio closes its socket."""

    socket: socket.socket
    admitted: bool = False


class Acceptor:
    """Accepts connections for a protocol.

    Args:
        make_protocol: Makes the protocol of a connection.
        most: How many connections may be open.
        tls: Their TLS. None means that there is none.
        refusals: Counts what is refused.
    """

    def __init__(
        self, make_protocol: Callable[[], asyncio.BaseProtocol], most: int, tls: ssl.SSLContext | None,
        refusals: RefusalLog,
    ) -> None:  # fmt: skip
        self._make_protocol, self._most, self._tls, self._refusals = make_protocol, most, tls, refusals
        self._loop = asyncio.get_running_loop()
        self._listening: list[socket.socket] = []
        # The oldest connection comes first.
        self._open: dict[Peer, _Open] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._trimming: asyncio.TimerHandle | None = None

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Begin to accept; returns the first address it listens at.

        Raises:
            OSError: It cannot.
        """
        for family, kind, protocol, _, endpoint in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            listener = socket.socket(family, kind, protocol)
            self._listening.append(listener)
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(endpoint)
            listener.listen()
        for listener in self._listening:
            self._loop.add_reader(listener, self._accept, listener)
        name = self._listening[0].getsockname()
        return name[0], name[1]

    def admit(self, peer: Peer) -> None:
        """A request of this connection is admitted."""
        if peer in self._open:
            self._open[peer].admitted = True

    async def close(self) -> None:
        """Stop accepting; connections that have begun are left to the protocol."""
        for listener in self._listening:
            self._loop.remove_reader(listener)
            listener.close()
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        if self._trimming is not None:
            self._trimming.cancel()
        self._refusals.close()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # The system has no descriptors or no memory left.
                self._refusals.add("system", "a connection", f"it cannot be accepted: {error.strerror}")
                self._loop.remove_reader(listener)
                self._loop.call_later(_PAUSE, self._accept_again, listener)
                return
            accepted.setblocking(False)
            if self._make_room(peer):
                self._open[peer] = _Open(accepted)
                self._loop.call_later(DEADLINE, self._overdue, peer, accepted)
                task = self._loop.create_task(self._start(accepted))
                self._starting.add(task)
                task.add_done_callback(self._starting.discard)
            else:
                accepted.close()

    def _accept_again(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            self._loop.add_reader(listener, self._accept, listener)

    async def _start(self, accepted: socket.socket) -> None:
        """Make the connection's transport, after the handshake of TLS."""
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol, accepted, ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else DEADLINE,
            )  # fmt: skip
        except OSError as error:
            # The peer may have left, or speaks no TLS. The traceback would keep the transport, with a buffer
            # of 256 KiB, in a cycle of references until the garbage collector looks at it.
            error.__traceback__ = None

    def _make_room(self, peer: Peer) -> bool:
        """Close a connection if another may not be opened; returns whether it may."""
        self._open = {name: one for name, one in self._open.items() if one.socket.fileno() >= 0}
        waiting = [name for name, one in self._open.items() if not one.admitted]
        place = network(peer[0])
        same = [name for name in waiting if network(name[0]) == place]
        share = max(1, self._most // SHARE)
        if len(same) >= share:
            why = f"{place} has {share} connections without an admitted request, more are not allowed"
            self._close(same[0], "address", why)
        elif len(self._open) >= self._most:
            why = f"{self._most} connections of the page are open, more are not allowed"
            if not waiting:
                self._refusals.add("full", f"{peer[0]} port {peer[1]}", why)
                return False
            self._close(waiting[0], "full", why)
        return True

    def _overdue(self, peer: Peer, accepted: socket.socket) -> None:
        one = self._open.get(peer)
        if one is not None and one.socket is accepted and accepted.fileno() >= 0 and not one.admitted:
            self._close(peer, "deadline", f"no request of it was admitted within {DEADLINE:g} s")

    def _trim(self) -> None:
        """Give the memory of closed connections back to the system, once for many of them."""
        self._trimming = None
        trim()

    def _close(self, peer: Peer, kind: str, why: str) -> None:
        with suppress(OSError):
            # The connection's transport closes the socket then.
            self._open.pop(peer).socket.shutdown(socket.SHUT_RDWR)
        if self._trimming is None:
            self._trimming = self._loop.call_later(2 * DEADLINE, self._trim)
        self._refusals.add(kind, f"{peer[0]} port {peer[1]}", why)
