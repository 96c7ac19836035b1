"""An HTTP proxy of a test: it opens tunnels by CONNECT, refuses, or breaks off."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class ConnectProxy:
    """What a proxy does, and what it was asked.

    `login` is "USER:PASSWORD", which it asks for. `answer` is a status with which it refuses everything. It
    breaks a tunnel off after `most` bytes from the server, the first time.
    """

    login: str | None = None
    answer: int | None = None
    most: int | None = None
    port: int = 0
    asked: list[str] = field(default_factory=list)
    broken: int = 0
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            writer.close()
            self.serving.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        self.asked.append(first)
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        status = self.answer or 200
        if self.login is not None:
            expected = f"Basic {base64.b64encode(self.login.encode()).decode()}"
            status = 200 if headers.get("proxy-authorization") == expected else 407
        writer.write(f"HTTP/1.1 {status} told\r\n\r\n".encode())
        if status == 200:
            await self._tunnel(first.split()[1], reader, writer)

    async def _tunnel(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = address.rpartition(":")
        theirs, ours = await asyncio.open_connection(host.strip("[]"), int(port))
        up = asyncio.create_task(self._copy(reader, ours, None))
        try:
            await self._copy(theirs, writer, self.most)
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)
            ours.close()

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, most: int | None
    ) -> None:
        copied = 0
        while data := await source.read(65536):
            copied += len(data)
            if most is not None and copied > most and not self.broken:
                self.broken += 1
                return
            target.write(data)
            await target.drain()


@asynccontextmanager
async def connect_proxy(
    login: str | None = None, answer: int | None = None, most: int | None = None
) -> AsyncIterator[ConnectProxy]:
    """A proxy on a free port."""
    proxy = ConnectProxy(login, answer, most)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listening.close()
        for task in (serving := list(proxy.serving)):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
