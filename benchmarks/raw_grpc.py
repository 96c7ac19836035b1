"""Raw gRPC streams that carry models and updates and do nothing with them: the floor for a server.

    python benchmarks/raw_grpc.py serve [--directory DIR]
    python benchmarks/raw_grpc.py send ADDRESS BYTES STREAMS COUNT

`serve` writes its port, and answers each update with a model of as many bytes; with a directory each update
is a file there and fsynced before the answer. `send` writes, as JSON, for each of so many streams at once the
moments at which its updates had been answered.

It is a program as anyone would write it, which imports gRPC and nothing else: how fast it is depends on where
the C library puts the chunks, and that on what else is in the process.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

CHUNK = 1 << 20
END = b"the bytes end here "
KEPT = 10  # files of updates, as between two checkpoints of a run
OPTIONS = [("grpc.max_receive_message_length", 2 * CHUNK), ("grpc.max_send_message_length", 2 * CHUNK)]


class Files:
    """The last updates, each in a file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count()
        self._kept: deque[Path] = deque()

    def keep(self, chunks: Sequence[bytes]) -> None:
        """Write an update, and remove the oldest one."""
        path = self._directory / f"update-{next(self._numbers)}"
        self._kept.append(path)
        with path.open("wb", buffering=0) as file:
            file.writelines(chunks)
            os.fsync(file.fileno())
        if len(self._kept) > KEPT:
            self._kept.popleft().unlink()


async def serve(directory: Path | None) -> None:
    files = Files(directory) if directory else None

    async def converse(_: Any, context: Any) -> None:
        model = memoryview(b"")
        chunks: list[bytes] = []
        while isinstance(message := await context.read(), bytes):
            if not message.startswith(END):
                if files is not None:
                    chunks.append(message)
                continue
            if files is not None:
                await asyncio.to_thread(files.keep, chunks)
                chunks = []
            size = int(message.removeprefix(END))
            if len(model) != size:
                model = memoryview(os.urandom(size))
            for at in range(0, size, CHUNK):
                await context.write(bytes(model[at : at + CHUNK]))
            await context.write(END)

    server = aio.server(options=OPTIONS)
    method: Any = grpc.stream_stream_rpc_method_handler(converse)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("raw", {"Raw": method}),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


async def send(address: str, size: int, streams: int, times: int) -> None:
    update = memoryview(os.urandom(size))
    found = await asyncio.gather(*(_stream(address, update, times, f"site-{i}") for i in range(streams)))
    print(json.dumps(found))


async def _stream(address: str, update: memoryview, times: int, name: str) -> list[float]:
    """When so many updates had been answered."""
    own = ("grpc.primary_user_agent", name)  # a connection of its own, as a site has
    channel = aio.insecure_channel(address, options=[*OPTIONS, own])
    call: Any = channel.stream_stream("/raw/Raw")()
    answered = []
    for _ in range(times):
        for at in range(0, len(update), CHUNK):
            await call.write(bytes(update[at : at + CHUNK]))
        await call.write(END + str(len(update)).encode())
        while await call.read() != END:
            pass
        answered.append(time.perf_counter())
    call.cancel()
    await channel.close()
    return answered


def main() -> int:
    parser = argparse.ArgumentParser(description="raw gRPC streams, the floor for a server")
    roles = parser.add_subparsers(dest="role", required=True)
    server = roles.add_parser("serve")
    server.add_argument("--directory", type=Path, help="write each update to a file here, and fsync it")
    sender = roles.add_parser("send")
    sender.add_argument("address")
    for number in ("bytes", "streams", "count"):
        sender.add_argument(number, type=int)
    chosen = parser.parse_args()
    if chosen.role == "serve":
        asyncio.run(serve(chosen.directory))
    else:
        asyncio.run(send(chosen.address, chosen.bytes, chosen.streams, chosen.count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
