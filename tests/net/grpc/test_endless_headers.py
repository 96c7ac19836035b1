"""A connection whose header block never ends is closed, before and after a site is admitted on it."""

import asyncio
import select
import socket
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from offbeat.net.messages import Register
from offbeat.net.wire.writer import MessageWriter
from tests.net.support import CONNECT, LIMITS, server, site
from tests.sampling import thorough

SHORT = replace(LIMITS, handshake=3.0, silence=3.0)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, CONTINUATION = 0, 1, 4, 9
END_HEADERS = 4
CALL = {
    ":method": "POST", ":scheme": "http", ":path": CONNECT, ":authority": "here", "te": "trailers",
    "content-type": "application/grpc", "offbeat-site": "north",
}  # fmt: skip


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def literal(name: str, value: str) -> bytes:
    """A header field, not indexed."""
    return b"\x00" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))


def flood(port: int, admitted: bool, fragment: bytes, links: list[str]) -> None:
    """Send continuations until the server ends the connection; an admitted one has a call beside them."""
    with closing(socket.create_connection(("127.0.0.1", port))) as link:
        link.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
        stream = 1
        if admitted:
            writer = MessageWriter()
            writer.put(Register(10, 1))
            message = writer.frame()
            block = b"".join(literal(*field) for field in CALL.items())
            link.sendall(frame(HEADERS, END_HEADERS, stream, block))
            link.sendall(frame(DATA, 0, stream, b"\x00" + len(message).to_bytes(4) + message))
            stream += 2
            wait_for_headers(link)
            # A flood that comes first keeps a busy server from the register.
            while "north" not in links:
                assert not select.select([link], [], [], 0.01)[0] or link.recv(65536)
        link.sendall(frame(HEADERS, 0, stream, literal("a", "b")))
        assert is_closed(link, frame(CONTINUATION, 0, stream, fragment))


def wait_for_headers(link: socket.socket) -> None:
    """Read frames until one has headers: the call is admitted."""
    with link.makefile("rb") as frames:
        kind = SETTINGS
        while kind != HEADERS:
            head = frames.read(9)
            kind = head[3]
            frames.read(int.from_bytes(head[:3]))


def is_closed(link: socket.socket, repeated: bytes) -> bool:
    """Send the same without end, until the server has closed its side; what it says is read over."""
    link.setblocking(False)
    left = b""
    with suppress(ConnectionError):
        while True:
            readable, writable, _ = select.select([link], [link], [], 300)
            if readable and not link.recv(65536):
                break
            if writable:
                left = left or repeated
                left = left[link.send(left) :]
            if not readable and not writable:
                return False
    return True


@pytest.mark.parametrize(
    "fragment", [*thorough(b"", literal("a", "b")), literal("a", "b") * 2000], ids=["none", "one", "many"]
)
@pytest.mark.parametrize("admitted", [False, True])
def test_a_header_block_without_an_end(admitted: bool, fragment: bytes) -> None:
    async def story() -> None:
        async with server(limits=SHORT) as at, site(at.address, "south", LIMITS):
            await asyncio.to_thread(flood, at.listener.port, admitted, fragment, at.heard.links)
            assert at.heard.links == ["south", "north"] if admitted else ["south"]

    asyncio.run(story())
