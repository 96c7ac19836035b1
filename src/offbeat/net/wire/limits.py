"""Limits on a peer's use of this process: sizes, rates and times, refused or waited for when exceeded."""

from dataclasses import dataclass, fields
from math import inf
from typing import TYPE_CHECKING

from offbeat.core.errors import UsageError

if TYPE_CHECKING:
    from offbeat.core.layout import Layout

MIB = 1 << 20
CHUNK = MIB
"""Bytes of a chunk that this implementation sends."""
LEAST_CHUNK, MOST_CHUNK = 64 << 10, 4 * MIB
"""Limits of the bytes of a received chunk; the last chunk of a body may be shorter."""
FRAME = MOST_CHUNK + 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one end of a transport. Times are in seconds, sizes in bytes.

    `layout` is the model's: with it, an update must have exactly its sizes. `body` is the most a message's
    tensors may take in any case, `payload` the most a coded update may, which a layout bounds further.
    `memory` is for all bodies being received at once, and not yet taken; further ones wait. A message
    without its tensors has at most `envelope` bytes, a model at most `tensors` tensors. Of `connections` one
    site has at most `of_a_site`: it needs one, and a second while it reconnects.

    `messages_per_second` and `bytes_per_second` (None means no limit) hold for each connection, after a burst
    of ten seconds' worth; who sends faster is read more slowly. `queue` messages may wait in each direction.

    `handshake` is the time from a connection to its `Register`, `stall` that in which a peer must read or go
    on with a body that it has begun, `drain` that in which the last messages are sent when it is closed.
    A peer that sends no frame of a message for `silence` is cut off, whatever else its connection carries; a
    server's must be longer than a lease, in which a site sends three heartbeats.
    Pings go out after `keepalive` silent seconds and must be answered in the same time.
    """

    layout: "Layout | None" = None
    body: int = 64 << 30
    payload: int = 64 << 30
    memory: int = 64 << 30
    envelope: int = MIB
    tensors: int = 20_000
    messages_per_second: float = 100.0
    bytes_per_second: float | None = None
    queue: int = 64
    connections: int = 1000
    of_a_site: int = 4
    metadata: int = 8192
    handshake: float = 10.0
    stall: float = 60.0
    silence: float = 300.0
    drain: float = 5.0
    keepalive: float = 20.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and value < 1:
                raise UsageError(f"{field.name} = {value}: it must be at least 1")
            if field.type in (float, float | None) and not (value is None or 0 < value < inf):
                raise UsageError(f"{field.name} = {value}: it must be greater than 0 and finite")
        if self.envelope > MOST_CHUNK:
            raise UsageError(f"envelope = {self.envelope}: it must be at most {MOST_CHUNK} bytes")
        if self.memory < self.body:
            raise UsageError(
                f"memory = {self.memory}: it must be at least body = {self.body}, or no such body could come"
            )
