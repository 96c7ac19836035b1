"""A TCP relay that resets each connection after a number of bytes."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from socket import SO_LINGER, SOL_SOCKET


@dataclass
class Relay:
    """Carries connections to a port, and resets each after bytes from the site (`up`) or to it (`down`).

    None means that it carries any number. With a `seed` the bytes are drawn for each connection, from none to
    twice as many. `carried` counts the bytes that it was given; a connection carries `rate` a second.
    """

    upstream: int
    up: int | None = None
    down: int | None = None
    seed: int | None = None
    rate: float | None = None
    port: int = 0
    connections: int = 0
    carried: int = 0
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        self.connections += 1
        ends, copies = [writer], list[asyncio.Task[None]]()
        try:
            theirs, ours = await asyncio.open_connection("127.0.0.1", self.upstream)
            ends.append(ours)
            copies = [
                asyncio.create_task(self._copy(reader, ours, self._most(self.up))),
                asyncio.create_task(self._copy(theirs, writer, self._most(self.down))),
            ]
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for copy in copies:
                copy.cancel()
            for end in ends:
                end.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
                end.transport.abort()
                end.close()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*copies, return_exceptions=True)
            self.serving.discard(task)

    def _most(self, most: int | None) -> int | None:
        if most is None or self.seed is None:
            return most
        return int(Random(f"{self.seed} {self.connections}").uniform(0, 2) * most)

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, most: int | None
    ) -> None:
        copied = 0
        with suppress(OSError):
            while data := await source.read(65536):
                copied += len(data)
                self.carried += len(data)
                if self.rate is not None:
                    await asyncio.sleep(len(data) / self.rate)
                if most is not None and copied > most:
                    return
                target.write(data)
                await target.drain()


@asynccontextmanager
async def relay(
    upstream: int,
    up: int | None = None,
    down: int | None = None,
    seed: int | None = None,
    rate: float | None = None,
) -> AsyncIterator[Relay]:
    """A relay that listens until the end."""
    relay = Relay(upstream, up, down, seed, rate)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        serving = list(relay.serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await server.wait_closed()
        # Transports that were aborted close their sockets in the next turn of the loop.
        await asyncio.sleep(0)
