"""The record of what has left a site or a helper: one JSON line for each message, in its state directory.

A line is durable before its message is handed to the connection. So the file may list a message that a broken
connection did not carry, and never lacks one that left. Heartbeats are counted: their line comes after at
most an hour. A line has no value of a message, only the names of the fields that it fills.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from offbeat.core.errors import reason_of
from offbeat.net.client.policy import SitePolicy
from offbeat.net.client.sent_lines import FILE, HEARTBEAT, RUN
from offbeat.net.messages import FromSite, Heartbeat
from offbeat.net.transport import ChannelClosedError
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.serialization import serialize
from offbeat.runs.durable_files import sync_directory, write_pieces
from offbeat.runs.own_files import open_own

log = logging.getLogger(__name__)
HEARTBEATS_EVERY = 3600.0
"""Seconds of which the heartbeats have one line."""
_SUBJECTS = ("task", "version", "release")


class UnrecordedError(ChannelClosedError):
    """What leaves cannot be recorded, so it must not leave: the connection ends, and another is tried."""


class SentLog:
    """Records what leaves. The process holds the directory, and calls it in one thread.

    Args:
        directory: The state directory. None means that nothing is recorded.
        policy: The site's policy. None means that it has none, as a helper.
        clock: Gives seconds since 1970.
    """

    def __init__(
        self,
        directory: Path | None = None,
        policy: SitePolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = None if directory is None else directory / FILE
        self._policy, self._clock = policy, clock
        # The registration that was recorded last, and its run.
        self._registration: tuple[object, ...] = ()
        self._run = ""
        # The heartbeats without a line: how many, their bytes, and when the first and the last were sent.
        self._heartbeats, self._heartbeat_bytes, self._since, self._last = 0, 0, 0.0, 0.0

    def registered(self, run: str, client: int | None, plan: Mapping[str, Any]) -> None:
        """Record a registration, once for a run and a plan: what is sent from then on is of the run.

        Args:
            run: The run's name.
            client: The site's number in the run. None means a helper, which has none.
            plan: The run specification as plain JSON.

        Raises:
            UnrecordedError: It cannot be recorded.
        """
        digest = sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
        registration = (run, client, digest)
        if self._path is None or registration == self._registration:
            return
        self._write_heartbeats()
        algorithm, model = plan.get("algorithm"), plan.get("model")
        self._write(
            {
                "at": self._clock(), "run": run, "kind": RUN, "client": client, "plan": digest,
                "algorithm": _name_in(algorithm), "model": _name_in(model), "policy": self._policy,
            }
        )  # fmt: skip
        self._registration, self._run = registration, run

    def sending(self, message: FromSite) -> None:
        """Record a message that is to be handed to the connection now.

        Raises:
            UnrecordedError: It cannot be recorded, so it must not be sent.
        """
        if self._path is None:
            return
        try:
            outgoing = serialize(message)
        except (ValueError, TypeError):
            # The connection refuses it, and ends.
            return
        envelope, now = outgoing.envelope, self._clock()
        size = envelope.ByteSize() + sum(map(len, outgoing.body))
        if isinstance(message, Heartbeat):
            self._count_heartbeat(now, size)
            return
        kind = envelope.WhichOneof("message")
        subject = {name: value for name in _SUBJECTS if (value := getattr(message, name, None)) is not None}
        fields = [field.name for field, _ in getattr(envelope, kind).ListFields()]
        fields += [pb.Part.Kind.Name(part.kind).lower() for part in envelope.body.parts if part.bytes]
        self._write(
            {
                "at": now, "run": self._run, "kind": kind, **subject, "bytes": size,
                "fields": [name for name in fields if name not in _SUBJECTS],
            }
        )  # fmt: skip

    def close(self) -> None:
        """Record the heartbeats that have no line yet."""
        try:
            self._write_heartbeats()
        except UnrecordedError as error:
            log.error("%d heartbeats have left without a record: %s", self._heartbeats, error)

    def _count_heartbeat(self, now: float, size: int) -> None:
        if self._heartbeats and now - self._since >= HEARTBEATS_EVERY:
            self._write_heartbeats()
        self._since = self._since if self._heartbeats else now
        self._heartbeats, self._heartbeat_bytes = self._heartbeats + 1, self._heartbeat_bytes + size
        self._last = now

    def _write_heartbeats(self) -> None:
        if self._heartbeats:
            self._write(
                {
                    "at": self._last, "run": self._run, "kind": HEARTBEAT, "bytes": self._heartbeat_bytes,
                    "count": self._heartbeats, "since": _timestamp(self._since),
                }
            )  # fmt: skip
            self._heartbeats = self._heartbeat_bytes = 0

    def _write(self, line: dict[str, Any]) -> None:
        """Append a line, durably. The file is opened for each: its operator may move it away at any time."""
        if self._path is None:
            return
        data = msgspec.json.encode({**line, "at": _timestamp(line["at"])}) + b"\n"
        try:
            file = open_own(self._path)
            try:
                end = os.lseek(file, 0, os.SEEK_END)
                if end:
                    os.lseek(file, end - 1, os.SEEK_SET)
                    # A process that died, or a full disk, has left a part of a line.
                    data = data if os.read(file, 1) == b"\n" else b"\n" + data
                write_pieces(file, [data])
                os.fsync(file)
            finally:
                os.close(file)
            if not end:
                sync_directory(self._path.parent)
        except OSError as error:
            raise UnrecordedError(
                f"what leaves cannot be recorded in {self._path} ({reason_of(error)}): nothing is sent until "
                "it can"
            ) from None


def _name_in(options: object) -> str | None:
    """The name of a plan's algorithm or model."""
    return str(options.get("name")) if isinstance(options, Mapping) else None


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
