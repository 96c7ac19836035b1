"""Bodies that did not come whole, kept until their sender goes on with them.

A peer is told how many bytes of a body are here, and their checksum. If it sends that body again, it begins
behind them. With a directory they are in files: those of a transfer that takes long are written while it
comes, so that a process that dies loses the last `SAVE_EVERY` seconds of it. Without one they are in memory.
"""

import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock

import msgspec
from xxhash import xxh3_64

from offbeat.net.transport import ProtocolError
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.bodies import between
from offbeat.runs.own_files import make_new

DIRECTORY = "transfers"
"""Where the files are, in a run's directory and in a site's state."""
SAVE_EVERY = 10.0
"""Seconds of a transfer after which what has come is written."""
MOST_OF_A_PEER = 2
"""Unfinished bodies of one peer: an update or a model, and an evaluation's model."""
_SUFFIX, _BLOCK, _LONGEST_HEAD = ".part", 1 << 20, 1 << 12
_log = logging.getLogger(__name__)
Parts = tuple[tuple[int, int, int], ...]
"""Kind, type and bytes of each part of a body."""


@dataclass(slots=True)
class IncomingBody:
    """A body that is coming.

    Attributes:
        kind: The kind of its message.
        parts: Kind, type and bytes of each part.
        memory: The memory of the parts, in order.
        received: Bytes that have come.
        checksum: Their XXH3-64.
        file: The file that has the first `saved` of them. None means that there is none.
        saved: Bytes in the file.
        began: When it was announced first, in seconds since 1970.
    """

    kind: str
    parts: Parts
    memory: list[memoryview]
    received: int = 0
    checksum: xxh3_64 = field(default_factory=xxh3_64)
    file: Path | None = None
    saved: int = 0
    began: float = field(default_factory=time.time)

    @property
    def size(self) -> int:
        """Bytes of the whole body."""
        return sum(size for _, _, size in self.parts)

    def add(self, data: memoryview) -> None:
        """Take the next bytes, which fit; their checksum is the caller's matter."""
        for view in between(self.memory, self.received, self.received + len(data)):
            view[:], data = data[: len(view)], data[len(view) :]
            self.received += len(view)


@dataclass(slots=True)
class _Kept:
    """A body that is kept since a time `at`: its first `size` bytes are those of a file, or in memory."""

    kind: str
    parts: Parts
    size: int
    at: float
    file: Path | None = None
    memory: list[memoryview] = field(default_factory=list)
    # When it was announced; of one that another process has left, when that wrote it last.
    began: float = 0.0
    # What a peer is told of it, once that was computed: a peer may connect again and again.
    body: pb.Body | None = None

    def blocks(self) -> Iterator[memoryview]:
        """Its bytes, a block after another. Raises `OSError`."""
        if self.file is None:
            yield from self.memory
            return
        with self.file.open("rb") as file:
            file.readline()
            left = self.size
            while left and (block := file.read(min(left, _BLOCK))):
                left -= len(block)
                yield memoryview(block)

    def told(self) -> pb.Body | None:
        """What a peer is told of it; None where its file cannot be read."""
        if self.body is not None:
            return self.body
        checksum = xxh3_64()
        try:
            for block in self.blocks():
                checksum.update(block)
        except OSError:
            return None
        parts = [pb.Part(kind=kind, type=type_, bytes=size) for kind, type_, size in self.parts]  # type: ignore[arg-type]
        self.body = pb.Body(parts=parts, offset=self.size, sum=checksum.intdigest())
        return self.body


class UnfinishedBodies:
    """The unfinished bodies of all peers of a process. Any thread may call its methods.

    Args:
        directory: Where their files are. None means that they are in memory.
        most: Bytes of all of them; the oldest go first.
        age: Seconds after which one is not kept any more.
    """

    def __init__(self, directory: Path | None = None, most: int = 16 << 30, age: float = 86400.0) -> None:
        self._directory, self._most, self._age = directory, most, age
        self._lock = RLock()
        self._kept: dict[str, list[_Kept]] = {}
        if directory is not None:
            for path in sorted(directory.glob(f"*{_SUFFIX}"), key=_modified):
                self._find(path)

    def has(self, peer: str) -> bool:
        """Whether anything of a peer is here."""
        return bool(self._kept.get(peer))

    def told(self, peer: str) -> list[pb.Body]:
        """What is here of a peer's bodies, to tell it. Reads all of it."""
        with self._lock:
            self._drop_old()
            kept = sorted(self._kept.get(peer, ()), key=lambda each: -each.size)
            return [told for each in kept if (told := each.told()) is not None]

    def save(self, peer: str, body: IncomingBody) -> None:
        """Write what has come of a body since the last call for it."""
        if self._directory is None:
            return
        try:
            if body.file is None:
                self._directory.mkdir(mode=0o700, exist_ok=True)
                body.file = self._directory / f"{peer}-{secrets.token_hex(6)}{_SUFFIX}"
                with os.fdopen(make_new(body.file), "wb") as file:
                    file.write(msgspec.json.encode([body.kind, body.parts]) + b"\n")
            with body.file.open("r+b") as file:
                # A connection that went on with it before may have written more.
                file.readline()
                file.seek(body.saved, os.SEEK_CUR)
                file.truncate()
                for view in between(body.memory, body.saved, body.received):
                    file.write(view)
                file.flush()
                os.fsync(file.fileno())
            body.saved = body.received
        except OSError as error:
            _log.warning("an unfinished body cannot be kept, and would be sent again: %s", error)
            self.forget(peer, body)

    def keep(self, peer: str, body: IncomingBody) -> None:
        """Keep what has come of a body whose connection has ended."""
        self.save(peer, body)
        memory = list(between(body.memory, 0, body.received)) if self._directory is None else []
        if body.file is None and not memory:
            return
        with self._lock:
            kept = self._kept.setdefault(peer, [])
            for each in list(kept):
                if each.kind == body.kind:
                    self._remove(peer, each, leave=body.file)
            for each in kept[: len(kept) + 1 - MOST_OF_A_PEER]:
                self._remove(peer, each)
            kept.append(
                _Kept(body.kind, body.parts, body.received, time.time(), body.file, memory, body.began)
            )
            self._drop_old()

    def resume(self, peer: str, body: IncomingBody, announced: pb.Body) -> None:
        """Fill in what is here of a body with which the peer goes on; it stays until the body has come whole.

        Raises:
            ProtocolError: The peer says that it is here, and it is not.
        """
        with self._lock:
            for kept in self._kept.get(peer, []):
                if (kept.parts, kept.size) == (body.parts, announced.offset) and _fill(kept, body):
                    if body.checksum.intdigest() == announced.sum:
                        body.file, body.saved = kept.file, body.received if kept.file is not None else 0
                        body.began = kept.began
                        return
                    body.received, body.checksum = 0, xxh3_64()
        offset = announced.offset
        raise ProtocolError(f"{body.kind} goes on behind {offset} bytes, which are not here", "size")

    def forget(self, peer: str, body: IncomingBody) -> None:
        """Delete what is here of a body that has come whole, or is of no use."""
        if body.file is not None:
            with suppress(OSError):
                body.file.unlink(missing_ok=True)
            body.file, body.saved = None, 0
        self.supersede(peer, body.kind)

    def supersede(self, peer: str, kind: str) -> None:
        """Delete a peer's unfinished bodies of a kind: it sends another one."""
        with self._lock:
            for kept in [each for each in self._kept.get(peer, ()) if each.kind == kind]:
                self._remove(peer, kept)

    def _find(self, path: Path) -> None:
        """Take a file that another process has left; one that cannot be read stays as it is."""
        with suppress(OSError, msgspec.DecodeError), path.open("rb") as file:
            head = file.readline(_LONGEST_HEAD)
            kind, parts = msgspec.json.decode(head, type=tuple[str, Parts])
            size, at = os.fstat(file.fileno()).st_size - len(head), _modified(path)
            self._kept.setdefault(path.name.rpartition("-")[0], []).append(
                _Kept(kind, parts, size, at, path, began=at)
            )

    def _drop_old(self) -> None:
        """Delete those that are too old, and the oldest while they have too many bytes."""
        every = [(each.at, peer, each) for peer, kept in self._kept.items() for each in kept]
        total, oldest = sum(each.size for *_, each in every), time.time() - self._age
        for at, peer, kept in sorted(every, key=lambda each: each[0]):
            if at < oldest or total > self._most:
                total -= kept.size
                self._remove(peer, kept)

    def _remove(self, peer: str, kept: _Kept, leave: Path | None = None) -> None:
        if kept.file is not None and kept.file != leave:
            with suppress(OSError):
                kept.file.unlink(missing_ok=True)
        self._kept[peer].remove(kept)


def _modified(path: Path) -> float:
    """When a file was written last; 0 where it is gone."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _fill(kept: _Kept, body: IncomingBody) -> bool:
    """Copy what is kept into a body; whether it could be read."""
    try:
        for block in kept.blocks():
            body.checksum.update(block)
            body.add(block[: body.size - body.received])
    except OSError:
        return False
    return body.received == kept.size
