"""Messages that do not get through: how often each was begun, whatever else the connections have carried.

A server that is there, or a heartbeat that passes, says nothing about a message that is larger than what a
link carries. So attempts are counted for each kind of message, until one of the kind is acknowledged.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from offbeat.net.client.sent_log import SentLog, UnrecordedError
from offbeat.net.messages import (
    EvaluationRequest,
    EvaluationResult,
    FromServer,
    FromSite,
    TaskAssignment,
    TaskCancel,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.token_renewal import RenewingClientChannel
from offbeat.net.transport import ChannelClosedError, ClientChannel, Transfer
from offbeat.secure.messages import UnmaskRequest, UnmaskShare

log = logging.getLogger(__name__)
_UPDATE, _EVALUATION, _SUM = UpdateSubmission.__name__, EvaluationResult.__name__, UnmaskShare.__name__


@dataclass
class Attempts:
    """The attempts to get one message through.

    Attributes:
        what: The message in words.
        count: Number of connections in a row that have begun it, and have not brought it further.
        seconds: Seconds from the first of these ends to the last, without those in which it was not owed.
        connections: Number of connections that have begun it.
        arrived: Bytes of it that are known to have come.
        done: Bytes of its tensors that went, or came, in the last attempt.
        size: Bytes of all its tensors; 0 for a message without any.
        last: When the last attempt ended. None means that the message was not owed since.
    """

    what: str
    count: int = 0
    seconds: float = 0.0
    connections: int = 0
    arrived: int = 0
    done: int = 0
    size: int = 0
    last: float | None = None


class Transfers:
    """The messages of a client that have not got through, over all its connections.

    Args:
        sent_log: Records each message before it leaves. None means that nothing is recorded.

    Attributes:
        acknowledged: Whether the last connection has brought an update to the server.
    """

    def __init__(self, sent_log: SentLog | None = None) -> None:
        self.sent_log, self.acknowledged = sent_log or SentLog(), False
        self._attempts: dict[str, Attempts] = {}
        # What the connection has begun and the server has not acknowledged, in words, by kind.
        self._begun: dict[str, str] = {}
        # The kinds of answers that the server has asked for in the connection.
        self._asked: set[str] = set()

    def watch(self, channel: ClientChannel) -> ClientChannel:
        """A connection that has just been opened, whose messages are recorded, and counted here."""
        if isinstance(channel, RenewingClientChannel):
            return channel.over(self.watch)
        return WatchedChannel(channel, self)

    def sent(self, message: FromSite) -> None:
        """Note a message that the client sends."""
        match message:
            case UpdateSubmission():
                self._begun[_UPDATE] = f"the update of task {message.task}"
            case EvaluationResult():
                self._begun[_EVALUATION] = f"the evaluation of version {message.version}"
            case UnmaskShare():
                self._begun[_SUM] = f"the sum of release {message.release}"

    def received(self, message: FromServer) -> None:
        """Note a message that has come whole: it is through, and may acknowledge another one."""
        self._through(type(message).__name__)
        match message:
            case UpdateAck():
                self._through(_UPDATE)
                self.acknowledged = True
            case TaskAssignment() | TaskCancel():
                # The update is not owed any more; that the link does not carry one stays true.
                self._begun.pop(_UPDATE, None)
                if (attempts := self._attempts.get(_UPDATE)) is not None:
                    attempts.last = None
            case EvaluationRequest():
                self._requested(_EVALUATION, f"the evaluation of version {message.version}")
            case UnmaskRequest():
                self._requested(_SUM, f"the sum of release {message.release}")

    def ended(self, now: float, transfers: Sequence[Transfer], *, registered: bool) -> list[Attempts]:
        """Count what the connection has begun and not got through; the attempts of these messages.

        Args:
            now: When the connection ended, in seconds.
            transfers: What was under way at its end.
            registered: Whether the server had registered the client. Then it asks again for the answers that
                it lacks, so others are through.
        """
        if registered:
            for kind in {_EVALUATION, _SUM} - self._asked:
                self._attempts.pop(kind, None)
        under_way = {each.kind: each for each in transfers}
        for kind in under_way.keys() - {_UPDATE, _SUM}:
            self._begun[kind] = under_way[kind].what
        for kind, attempts in self._attempts.items():
            if kind not in self._begun:
                attempts.last = None
        failed = [self._failed(now, kind, what, under_way.get(kind)) for kind, what in self._begun.items()]
        self._begun, self._asked = {}, set()
        return failed

    def _failed(self, now: float, kind: str, what: str, transfer: Transfer | None) -> Attempts:
        attempts = self._attempts.setdefault(kind, Attempts(what))
        if attempts.what != what:
            attempts.what, attempts.connections, attempts.arrived = what, 0, 0
        arrived = 0 if transfer is None else transfer.arrived
        if arrived > attempts.arrived:
            # The link carries the message, if in pieces.
            attempts.count, attempts.seconds = 0, 0.0
        elif attempts.last is not None:
            attempts.seconds += now - attempts.last
            attempts.count += 1
        else:
            attempts.count += 1
        attempts.arrived, attempts.last, attempts.connections = arrived, now, attempts.connections + 1
        if transfer is not None:
            attempts.done, attempts.size = transfer.done, transfer.size
        return attempts

    def _requested(self, kind: str, what: str) -> None:
        """The server asks for an answer. What it does not ask for again is through."""
        before = self._attempts.get(kind)
        if before is not None and before.what != what:
            self._through(kind)
        self._asked.add(kind)

    def _through(self, kind: str) -> None:
        self._attempts.pop(kind, None)
        self._begun.pop(kind, None)


class WatchedChannel:
    """A `ClientChannel` whose messages are recorded and counted; it ends where one cannot be recorded.

    Args:
        channel: The connection.
        transfers: What has not got through, and the record of what has left.
    """

    def __init__(self, channel: ClientChannel, transfers: Transfers) -> None:
        transfers.acknowledged = False
        self._channel, self._transfers = channel, transfers
        # Why a message could not be recorded. None means that each one was.
        self._unrecorded: UnrecordedError | None = None
        self._closing: asyncio.Task[None] | None = None
        self.close = channel.close

    def send(self, message: FromSite) -> None:
        """Record a message and queue it; does nothing on a closed connection.

        A message that cannot be recorded does not leave, nor does any after it: the connection is closed, and
        `receive` reports why.
        """
        if self._unrecorded is not None:
            return
        try:
            self._transfers.sent_log.sending(message)
        except UnrecordedError as error:
            # Who sends may be a task of its own, to which nobody listens.
            log.error("%s", error)
            self._unrecorded = error
            self._closing = asyncio.create_task(self._channel.close("a message cannot be recorded"))
            return
        self._transfers.sent(message)
        self._channel.send(message)

    @property
    def took(self) -> float:
        """Seconds in which the tensors of the last message came, over however many connections."""
        return self._channel.took

    async def receive(self) -> FromServer:
        """The next message. Raises `ChannelClosedError`."""
        try:
            message = await self._channel.receive()
        except ChannelClosedError:
            if self._unrecorded is None:
                raise
        if self._unrecorded is not None:
            raise self._unrecorded
        self._transfers.received(message)
        return message
