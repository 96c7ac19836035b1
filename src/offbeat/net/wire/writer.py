"""Messages in, frames out: which frame is sent next, without sockets or clocks.

Messages are sent in the order they were queued, those without a body in one frame with what follows. A body
that fits into one chunk is in the frame of its message, and so is the acknowledgement of what has come. There
is one exception: while a body of tensors is being sent, a message without a body is sent between two chunks,
unless it is about the same task as the body or as a message queued before it. So a recall does not wait for
another task's model, and the messages of one task keep their order. A `Heartbeat` passes everything, and
replaces an older one that is still queued.

Chunks are encoded here and frames parsed in `reader` by hand, in the bytes that protobuf defines for them,
because protobuf would copy a chunk's data twice more.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from xxhash import xxh3_64

from offbeat.core.layout import Layout
from offbeat.net.messages import (
    EvaluationRequest,
    EvaluationResult,
    Heartbeat,
    Message,
    ModelResponse,
    RunFinished,
    TaskAssignment,
    UpdateSubmission,
)
from offbeat.net.transport import Transfer, transfer
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.bodies import between
from offbeat.net.wire.limits import CHUNK, LEAST_CHUNK
from offbeat.net.wire.serialization import OutgoingMessage, serialize
from offbeat.secure.messages import UnmaskShare

TOGETHER = 16
"""Messages in a frame, at most: however long their reasons, a frame stays far below its limit."""
ENVELOPE_TAG, CHUNK_TAG = 0x0A, 0x12  # protobuf's tags of Frame.envelope and Frame.chunk
UNFINISHED_TAG, ACKNOWLEDGED_TAG = 0x1A, 0x20  # and of Frame.unfinished and Frame.acknowledged
SUM_TAG, DATA_TAG = 0x09, 0x12  # and of Chunk.sum and Chunk.data
LEAST_WINDOW, MOST_WINDOW, _SHARE = 2 * LEAST_CHUNK, 16 << 20, 16
"""Bytes of bodies that may be under way without an acknowledgement, and their share of those with one.

A connection that is reset loses what is under way. So a link that carries little loses little.
"""
_WithModel = TaskAssignment | ModelResponse | EvaluationRequest | RunFinished
_EVERYTHING, _EVALUATION = object(), object()


class MessageWriter:
    """Queue of messages to a peer.

    `chunk` is the size of a body's chunks. None means that they grow with what the peer has acknowledged,
    and that the next one waits for an acknowledgement (`ready`) where too much is under way.
    """

    def __init__(self, chunk: int | None = None) -> None:
        self._chunk = chunk
        # Bytes of bodies that were sent and acknowledged, and those sent before the begin of the last body.
        self._total = self._acknowledged = self._before = 0
        # Bytes of bodies that have come, and that the peer was told of; and whether a frame must tell it.
        self._received = self._answered = 0
        self._due = False
        self._waiting: deque[Message] = deque()
        # The frames of the messages that are being sent, each with the bytes of the body that it has.
        self._body: Iterator[tuple[bytes, int]] = iter(())
        self._next: tuple[bytes, int] | None = None
        # What the peer has of bodies that it has not received whole, and what it is to be told of those here.
        self._peer_has: Sequence[pb.Body] = ()
        self._tries = 0
        self._unfinished: Sequence[pb.Body] = ()
        self._subject: object = None
        # The last message with a body as it began, its bytes that were sent and have come, and those of the
        # last frame.
        self._sent: Transfer | None = None
        self._done = self._arrived = self._in_frame = 0
        self._told: Layout | None = None

    def __len__(self) -> int:
        """Number of queued messages, without the one whose body is being sent."""
        return len(self._waiting)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self._waiting and self._next is None and not self._due

    @property
    def ready(self) -> bool:
        """Whether something can be sent now: a chunk may have to wait for an acknowledgement."""
        if self._next is None or self._due:
            return not self.empty
        return not self.waits or self._passing() is not None

    @property
    def waits(self) -> bool:
        """Whether the next chunk waits for an acknowledgement."""
        if self._next is None or self._chunk is not None:
            return False
        return self._next[1] > self._room

    @property
    def transfer(self) -> Transfer | None:
        """The last message with a body, as far as its frames were `written`; None means none."""
        return self._sent and replace(self._sent, done=self._done, arrived=self._arrived)

    @property
    def answered(self) -> int:
        """Bytes of bodies that have come, as the peer was told."""
        return self._answered

    def tell(self, unfinished: Sequence[pb.Body]) -> None:
        """Tell the peer, with the next message, what is here of bodies that did not come whole."""
        self._unfinished = unfinished

    def peer_has(self, unfinished: Sequence[pb.Body]) -> None:
        """Note what the peer has of bodies that were sent to it: the next ones go on from there."""
        self._peer_has, self._tries = unfinished, len(unfinished)

    def acknowledge(self, total: int, *, due: bool = True) -> None:
        """Tell the peer how many bytes of bodies have come: with the next message, or now if it is `due`."""
        self._received = total
        self._due = self._due or due

    def acknowledged(self, total: int) -> bool:
        """Note how many bytes of bodies have come; whether they are more than before."""
        before, self._acknowledged = self._acknowledged, max(self._acknowledged, min(total, self._total))
        self._arrived = max(self._arrived, self._acknowledged - self._before)
        return self._acknowledged > before

    def written(self) -> None:
        """Note that the last frame was sent."""
        self._done, self._in_frame = self._done + self._in_frame, 0

    def put(self, message: Message) -> None:
        """Queue a message."""
        if isinstance(message, Heartbeat):
            self._waiting = deque(m for m in self._waiting if not isinstance(m, Heartbeat))
        self._waiting.append(message)

    def frame(self) -> bytes:
        """The next frame; `empty` must be false. Raises `ValueError` for a message that cannot be sent."""
        if self._due and (self._next is not None or not self._waiting):
            return bytes((ACKNOWLEDGED_TAG,)) + _varint(self._answer())
        if self._next is None:
            self._start()
        elif (place := self._passing()) is not None:
            passing = self._waiting[place]
            # `remove` would compare tensors.
            del self._waiting[place]
            return pb.Frame(envelopes=[serialize(passing).envelope]).SerializeToString()
        assert self._next is not None
        frame, self._in_frame = self._next
        self._total += self._in_frame
        self._next = next(self._body, None)
        return frame

    def _answer(self) -> int:
        """The bytes of bodies that have come, of which the peer is told now."""
        self._answered, self._due = self._received, False
        return self._received

    def _start(self) -> None:
        """Begin with the first messages, up to one that has a body."""
        envelopes: list[pb.Envelope] = []
        body: tuple[memoryview, ...] = ()
        offset, checksum = 0, xxh3_64()
        while self._waiting and not body and len(envelopes) < TOGETHER:
            message = self._waiting.popleft()
            outgoing = serialize(message, self._told)
            if isinstance(message, _WithModel) and message.model is not None:
                self._told = message.model.layout
            envelopes.append(outgoing.envelope)
            body, self._subject = outgoing.body, _subject(message)
            if body:
                size = sum(map(len, body))
                if size > LEAST_CHUNK and self._tries:
                    # A comparison takes time, and what does not fit the first bodies fits none.
                    self._tries -= 1
                    offset, checksum = _resumed(outgoing, self._peer_has)
                self._before = self._total - offset
                self._sent, self._done, self._arrived = transfer(message, offset, size), offset, offset
        head = pb.Frame(envelopes=envelopes, unfinished=self._unfinished)
        self._unfinished = ()
        # The peer need not know of less. The first frame never waits for an acknowledgement itself.
        if self._due or self._received - self._answered >= LEAST_CHUNK:
            head.acknowledged = self._answer()
        self._body = frames(head, body, self._size, offset, checksum)
        self._next = next(self._body)

    @property
    def _window(self) -> int:
        """Bytes of a body that may be under way."""
        return max(LEAST_WINDOW, min(MOST_WINDOW, self._acknowledged // _SHARE))

    @property
    def _room(self) -> int:
        """Bytes of a body that may be sent now."""
        return self._window - (self._total - self._acknowledged)

    def _size(self, left: int) -> int:
        """Bytes of the next chunk of a body, of which `left` are still to send."""
        if self._chunk is not None:
            return self._chunk
        if left <= min(CHUNK, self._window // 2, self._room):
            return left
        return max(LEAST_CHUNK, min(CHUNK, self._window // 4 // LEAST_CHUNK * LEAST_CHUNK))

    def _passing(self) -> int | None:
        """The place of the first message that may be sent before the body is complete."""
        before = {self._subject}
        for place, message in enumerate(self._waiting):
            subject = _subject(message)
            small = not isinstance(message, _WithModel | UpdateSubmission | UnmaskShare)
            free = subject not in before and _EVERYTHING not in before and subject is not _EVERYTHING
            if isinstance(message, Heartbeat) or (small and free):
                return place
            before.add(subject)
        return None


def _subject(message: Message) -> object:
    """The task that a message is about, or the evaluation; one about neither keeps its place among all."""
    if isinstance(message, EvaluationRequest | EvaluationResult):
        return _EVALUATION
    return getattr(message, "task", _EVERYTHING)


def _resumed(outgoing: OutgoingMessage, peer_has: Sequence[pb.Body]) -> tuple[int, xxh3_64]:
    """The bytes of a body that the peer has, noted in its envelope, and their checksum."""
    announced = outgoing.envelope.body
    size = sum(map(len, outgoing.body))
    for theirs in peer_has:
        if list(theirs.parts) == list(announced.parts) and 0 < theirs.offset < size:
            checksum = xxh3_64()
            for piece in between(outgoing.body, 0, theirs.offset):
                checksum.update(piece)
            if checksum.intdigest() == theirs.sum:
                announced.offset, announced.sum = theirs.offset, theirs.sum
                return theirs.offset, checksum
    return 0, xxh3_64()


def frames(
    head: pb.Frame,
    body: Sequence[memoryview],
    size: Callable[[int], int] = lambda _: CHUNK,
    offset: int = 0,
    checksum: xxh3_64 | None = None,
) -> Iterator[tuple[bytes, int]]:
    """The frames of messages of which only the last has a body, each with the bytes of the body in it.

    A body of several chunks, or of a large one, is announced by a frame of its own: a peer whose
    connection breaks before the first chunk knows what it has missed. `head` has the envelopes, `size`
    gives the bytes of the next chunk for those that are left. The first `offset` bytes of the body, whose
    `checksum` is given, are not sent.
    """
    begin, whole = head.SerializeToString(), sum(map(len, body))
    checksum = checksum or xxh3_64()
    # What the peer has of a body must be found there before its next chunk comes.
    if offset or min(CHUNK, size(whole)) < whole:
        yield begin, 0
        begin = b""
    while offset < whole:
        length = min(size(whole - offset), whole - offset)
        pieces = body if length == whole else list(between(body, offset, offset + length))
        for piece in pieces:
            checksum.update(piece)
        yield b"".join((begin, _chunk_head(checksum.intdigest(), length), *pieces)), length
        begin, offset = b"", offset + length
    if begin:
        yield begin, 0


def _chunk_head(checksum: int, length: int) -> bytes:
    inner = b"".join((bytes((SUM_TAG,)), checksum.to_bytes(8, "little"), bytes((DATA_TAG,)), _varint(length)))
    return b"".join((bytes((CHUNK_TAG,)), _varint(len(inner) + length), inner))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
