"""A TCP relay that treats each connection badly in one of several ways, drawn by chance.

Plain: it only carries. Dropped: reset after a while. Slow: every piece is late. Half-open: from some moment
on what is sent is taken and goes nowhere, in both directions, and nobody is told. Swallowed: from the start.
"""

import asyncio
import json
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

FATES = {"plain": 0.5, "dropped": 0.2, "slow": 0.15, "half-open": 0.1, "swallowed": 0.05}
PIECE = 1 << 16


async def relay(upstream: int, seed: int, told: Path) -> None:
    """Carry connections to a port of this machine until SIGTERM; tells its own port, then the counts."""
    chance, counts = Random(seed), Counter[str]()
    running: set[asyncio.Task[None]] = set()

    async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None
        running.add(me)
        fate = chance.choices(list(FATES), list(FATES.values()))[0]
        counts[fate] += 1
        try:
            await _treat(fate, upstream, reader, writer, Random(chance.random()))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            running.discard(me)
            writer.transport.abort()

    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    server = await asyncio.start_server(taken, "127.0.0.1", 0)
    _tell(told, {"port": server.sockets[0].getsockname()[1]})
    await over.wait()
    server.close()
    for task in list(running):
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    _tell(told, {"counts": dict(counts)})


async def _treat(
    fate: str, upstream: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chance: Random
) -> None:
    if fate == "swallowed":
        while await reader.read(PIECE):
            pass
        return
    there, onward = await asyncio.open_connection("127.0.0.1", upstream)
    lost = asyncio.Event()  # from then on nothing is carried
    late = 0.3 if fate == "slow" else 0.0
    ways = [
        asyncio.create_task(_carry(reader, onward, lost, late, chance)),
        asyncio.create_task(_carry(there, writer, lost, late, chance)),
    ]
    try:
        if fate in ("dropped", "half-open"):
            await asyncio.wait(ways, timeout=chance.uniform(0.05, 10.0), return_when=asyncio.FIRST_COMPLETED)
            lost.set()
        if fate != "dropped":
            await asyncio.wait(
                ways, return_when=asyncio.ALL_COMPLETED if lost.is_set() else asyncio.FIRST_COMPLETED
            )
    finally:
        for way in ways:
            way.cancel()
        onward.transport.abort()


async def _carry(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, lost: asyncio.Event, late: float, chance: Random
) -> None:
    """One direction; once it is lost, what comes is still taken."""
    with suppress(OSError):
        while piece := await source.read(PIECE):
            if late:
                await asyncio.sleep(chance.uniform(0.0, late))
            if not lost.is_set():
                sink.write(piece)
                await sink.drain()


def _tell(path: Path, what: dict[str, object]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(what), encoding="utf-8")
    part.replace(path)
