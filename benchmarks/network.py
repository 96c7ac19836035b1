"""The links beside what they are made of: raw gRPC streaming of the same bytes, over loopback.

    python benchmarks/network.py [--repeats 7] [--connections 500]

Three tables. Updates a second: a site sends updates of 1 MB and of 100 MB, each answered by a receipt
before the next; raw gRPC sends the same bytes in chunks of the same size, each answered by a few bytes;
the two take turns, and the medians are compared. Latency: a heartbeat and its answer, through the links
and raw. Idle: so many connected sites in this process, with the memory and the processor's time that both
of their ends take. Both ends share the process and its event loop everywhere. It needs 1 GB.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import torch
from grpc import aio

from offbeat.core.layout import Layout
from offbeat.net.auth.credentials import ServerCredentials, SiteCredentials
from offbeat.net.grpc.client import connect
from offbeat.net.grpc.protocol import channel_options
from offbeat.net.grpc.server import listen
from offbeat.net.messages import Heartbeat, Register, UpdateAck, UpdateSubmission
from offbeat.net.transport import ChannelClosedError, ServerChannel
from offbeat.net.wire.limits import CHUNK, Limits

LIMITS = Limits(messages_per_second=1e6)
NONE = torch.zeros(0, dtype=torch.int64)


async def on_channel(link: ServerChannel) -> None:
    """Receipts for updates, heartbeats for heartbeats."""
    with suppress(ChannelClosedError):
        while True:
            message = await link.receive()
            if isinstance(message, UpdateSubmission):
                link.send(UpdateAck(message.task, True))
            elif isinstance(message, Heartbeat):
                link.send(message)


async def raw_server() -> tuple[aio.Server, int]:
    """A server that reads updates, each ended by a short frame, and answers each with that frame."""

    async def converse(_: Any, context: Any) -> None:
        while isinstance(frame := await context.read(), bytes):
            if len(frame) < 64:
                await context.write(frame)

    server = aio.server(options=channel_options(LIMITS))
    method: Any = grpc.stream_stream_rpc_method_handler(converse)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("raw", {"Raw": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def per_second(count: int, once: Callable[[int], Awaitable[object]]) -> float:
    start = time.perf_counter()
    for number in range(count):
        await once(number)
    return count / (time.perf_counter() - start)


async def both(values: int, count: int, repeats: int) -> tuple[list[float], list[float]]:
    """Exchanges a second of so many values, through a link and raw, taking turns; none: heartbeats."""
    layout = Layout.flat(values) if values else None
    listener = await listen("127.0.0.1:0", ServerCredentials(), limits_of(layout), on_channel)
    link = await connect(f"127.0.0.1:{listener.port}", SiteCredentials(name="site"), LIMITS)
    link.send(Register(1, 1))
    server, port = await raw_server()
    channel = aio.insecure_channel(f"127.0.0.1:{port}", options=channel_options(LIMITS))
    call: Any = channel.stream_stream("/raw/Raw")()
    delta = torch.randn(values)
    octets = memoryview(delta.numpy()).cast("B") if values else memoryview(b"")

    async def through_link(number: int) -> None:
        link.send(UpdateSubmission(number, 1, delta, NONE) if values else Heartbeat())
        await link.receive()

    async def through_raw(_: int) -> None:
        for at in range(0, len(octets), CHUNK):
            await call.write(bytes(octets[at : at + CHUNK]))
        await call.write(b"done")
        await call.read()

    ours, raws = [], []
    for _ in range(repeats + 1):  # the first of each warms up
        raws.append(await per_second(count, through_raw))
        ours.append(await per_second(count, through_link))
    await link.close()
    await listener.close()
    call.cancel()
    await channel.close()
    await server.stop(0)
    return ours[1:], raws[1:]


def limits_of(layout: Layout | None) -> Limits:
    return Limits(layout=layout, messages_per_second=1e6)


def resident() -> int:
    """Bytes of memory that this process holds."""
    status = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(status[1]) * os.sysconf("SC_PAGE_SIZE")


async def idle(connections: int, seconds: float) -> str:
    """What so many connected sites cost."""
    before = resident()
    listener = await listen("127.0.0.1:0", ServerCredentials(), LIMITS, on_channel)
    address = f"127.0.0.1:{listener.port}"
    links = []
    for number in range(connections):
        links.append(await connect(address, SiteCredentials(name=f"site-{number}"), LIMITS))
        links[-1].send(Register(1, 1))
    while len(listener.sites) < connections:
        await asyncio.sleep(0.1)
    grown = (resident() - before) / connections / 1024
    silent = await busy(seconds, links, beats=False)
    beating = await busy(seconds, links, beats=True)
    await asyncio.gather(*(link.close() for link in links))
    await listener.close()
    return f"| {connections} | {grown:.0f} KiB | {silent:.2%} | {beating:.2%} |"


async def busy(seconds: float, links: list[Any], beats: bool) -> float:
    """The part of one core that is used meanwhile; with `beats` every link beats once in 5 seconds."""
    start, used = time.perf_counter(), time.process_time()
    while (now := time.perf_counter() - start) < seconds:
        if beats:
            for link in links[:: max(1, round(5 / 0.5))]:
                link.send(Heartbeat())
                await link.receive()
            links = links[1:] + links[:1]
        await asyncio.sleep(max(0.0, 0.5 - (time.perf_counter() - start - now)))
    return (time.process_time() - used) / (time.perf_counter() - start)


async def main() -> None:
    parser = argparse.ArgumentParser(description="the links beside raw gRPC")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=10.0, help="to watch idle connections for")
    chosen = parser.parse_args()
    print(
        "| connections | memory each | processor, silent | processor, a beat every 5 s |\n|---|---|---|---|"
    )
    print(await idle(chosen.connections, chosen.seconds))
    print("\n| update | links, updates/s | raw gRPC, updates/s | ratio |\n|---|---|---|---|")
    for name, values, count in (("1 MB", 250_000, 50), ("100 MB", 25_000_000, 2)):
        ours, raws = await both(values, count, chosen.repeats)
        ratio = median(ours) / median(raws)
        print(f"| {name} | {median(ours):.1f} | {median(raws):.1f} | {ratio:.2f} |", flush=True)
    ours, raws = await both(0, 300, chosen.repeats)
    print("\n| heartbeat and answer | links | raw gRPC |\n|---|---|---|")
    print(f"| median | {1e3 / median(ours):.2f} ms | {1e3 / median(raws):.2f} ms |")


if __name__ == "__main__":
    asyncio.run(main())
