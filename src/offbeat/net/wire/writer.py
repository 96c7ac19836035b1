"""Messages in, frames out: which frame is sent next, without sockets or clocks.

Messages are sent in the order they were queued, those without a body in one frame with what follows. There is
one exception: while a body of tensors is being sent, a message without a body is sent between two chunks,
unless it is about the same task as the body or as a message queued before it. So a recall does not wait for
another task's model, and the messages of one task keep their order. A `Heartbeat` passes everything, and
replaces an older one that is still queued.

Chunks are encoded here and frames parsed in `reader` by hand, in the bytes that protobuf defines for them,
because protobuf would copy a chunk's data twice more.
"""

from collections import deque
from collections.abc import Iterator, Sequence
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
from offbeat.net.wire.limits import CHUNK, LEAST_CHUNK
from offbeat.net.wire.serialization import serialize
from offbeat.secure.messages import UnmaskShare

TOGETHER = 16
"""Messages in a frame, at most: however long their reasons, a frame stays far below its limit."""
ENVELOPE_TAG, CHUNK_TAG = 0x0A, 0x12  # protobuf's tags of Frame.envelope and Frame.chunk
SUM_TAG, DATA_TAG = 0x09, 0x12  # and of Chunk.sum and Chunk.data
_WithModel = TaskAssignment | ModelResponse | EvaluationRequest | RunFinished
_EVERYTHING, _EVALUATION = object(), object()


class MessageWriter:
    """Queue of messages to a peer, with bodies in chunks of `chunk` bytes."""

    def __init__(self, chunk: int = CHUNK) -> None:
        self._chunk = chunk
        self._waiting: deque[Message] = deque()
        self._body: Iterator[bytes] = iter(())
        self._next: bytes | None = None
        self._subject: object = None
        # The last message with a body, and the bytes of the body in the last frame.
        self._sent: Transfer | None = None
        self._in_frame, self._announces = 0, False
        self._told: Layout | None = None

    def __len__(self) -> int:
        """Number of queued messages, without the one whose body is being sent."""
        return len(self._waiting)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self._waiting and self._next is None

    @property
    def transfer(self) -> Transfer | None:
        """The last message with a body, as far as its frames were `written`; None means none."""
        return self._sent

    def written(self) -> None:
        """Note that the last frame was sent."""
        if self._sent is not None and self._in_frame:
            self._sent, self._in_frame = replace(self._sent, done=self._sent.done + self._in_frame), 0

    def put(self, message: Message) -> None:
        """Queue a message."""
        if isinstance(message, Heartbeat):
            self._waiting = deque(m for m in self._waiting if not isinstance(m, Heartbeat))
        self._waiting.append(message)

    def frame(self) -> bytes:
        """The next frame; `empty` must be false. Raises `ValueError` for a message that cannot be sent."""
        if self._next is None:
            self._start()
        else:
            passing = self._take_passing()
            if passing is not None:
                return next(frames([serialize(passing).envelope], ()))
        frame, self._next = self._next, next(self._body, None)
        assert frame is not None
        if self._sent is not None and not self._announces:
            self._in_frame = min(self._chunk, self._sent.size - self._sent.done)
        self._announces = False
        return frame

    def _start(self) -> None:
        """Begin with the first messages, up to one that has a body."""
        envelopes: list[pb.Envelope] = []
        body: tuple[memoryview, ...] = ()
        while self._waiting and not body and len(envelopes) < TOGETHER:
            message = self._waiting.popleft()
            outgoing = serialize(message, self._told)
            if isinstance(message, _WithModel) and message.model is not None:
                self._told = message.model.layout
            envelopes.append(outgoing.envelope)
            body, self._subject = outgoing.body, _subject(message)
            if body:
                self._sent = transfer(message, 0, sum(map(len, body)))
                self._announces = self._sent.size > LEAST_CHUNK
        self._body = frames(envelopes, body, self._chunk)
        self._next = next(self._body)

    def _take_passing(self) -> Message | None:
        """The first message that may be sent before the body is complete."""
        before = {self._subject}
        for place, message in enumerate(self._waiting):
            subject = _subject(message)
            small = not isinstance(message, _WithModel | UpdateSubmission | UnmaskShare)
            free = subject not in before and _EVERYTHING not in before and subject is not _EVERYTHING
            if isinstance(message, Heartbeat) or (small and free):
                # `remove` would compare tensors.
                del self._waiting[place]
                return message
            before.add(subject)
        return None


def _subject(message: Message) -> object:
    """The task that a message is about, or the evaluation; one about neither keeps its place among all."""
    if isinstance(message, EvaluationRequest | EvaluationResult):
        return _EVALUATION
    return getattr(message, "task", _EVERYTHING)


def frames(
    envelopes: Sequence[pb.Envelope], body: Sequence[memoryview], size: int = CHUNK
) -> Iterator[bytes]:
    """The frames of messages of which only the last has a body, in chunks of `size` bytes.

    A body that takes a while is announced by a frame of its own: a peer whose connection breaks before the
    first chunk knows what it has missed.
    """
    head = pb.Frame(envelopes=envelopes).SerializeToString()
    if sum(map(len, body)) > LEAST_CHUNK:
        yield head
        head = b""
    checksum = xxh3_64()
    for pieces in _cut(body, size):
        for piece in pieces:
            checksum.update(piece)
        yield b"".join((head, _chunk_head(checksum.intdigest(), pieces), *pieces))
        head = b""
    if head:
        yield head


def _chunk_head(checksum: int, pieces: Sequence[memoryview]) -> bytes:
    length = sum(len(piece) for piece in pieces)
    inner = b"".join((bytes((SUM_TAG,)), checksum.to_bytes(8, "little"), bytes((DATA_TAG,)), _varint(length)))
    return b"".join((bytes((CHUNK_TAG,)), _varint(len(inner) + length), inner))


def _cut(parts: Sequence[memoryview], size: int) -> Iterator[list[memoryview]]:
    pieces: list[memoryview] = []
    space = size
    for part in parts:
        while len(part):
            pieces.append(part[:space])
            space -= len(pieces[-1])
            part = part[len(pieces[-1]) :]
            if not space:
                yield pieces
                pieces, space = [], size
    if pieces:
        yield pieces


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
