"""Messages in, frames out: which frame is sent next, without sockets or clocks.

Messages go out in the order they were put in, those without a body together with what comes after them.
There is one exception to the order: while a body of tensors is on its way, a
message without a body is sent between two chunks, unless it speaks of the same task as the body or as a
message that waits before it. So a recall does not wait for another task's model, and what is said of one
task keeps its order. `Heartbeat` passes everything: it only says that the sender is alive.
"""

from collections import deque
from collections.abc import Iterator

from offbeat.core.model import Layout
from offbeat.net.messages import Heartbeat, Message, ModelResponse, TaskAssignment, UpdateSubmission
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.encode import encode
from offbeat.net.wire.frames import frames

TOGETHER = 16
"""Messages of a frame, at most: however long their reasons, a frame stays far below what a peer takes."""
_EVERYTHING = object()


class MessageWriter:
    """What is still to be sent to a peer, which may know the model's layout already."""

    def __init__(self) -> None:
        self._waiting: deque[Message] = deque()
        self._body: Iterator[bytes] = iter(())
        self._next: bytes | None = None
        self._speaks_of: object = None
        self._told: Layout | None = None

    def __len__(self) -> int:
        """Number of messages that wait, without the one whose body is on its way."""
        return len(self._waiting)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return not self._waiting and self._next is None

    def put(self, message: Message) -> None:
        """Send this after what is there."""
        self._waiting.append(message)

    def frame(self) -> bytes:
        """The next frame; `empty` must be false. Raises `ValueError` for a message that cannot be sent."""
        if self._next is None:
            self._start()
        else:
            passing = self._take_passing()
            if passing is not None:
                return next(frames([encode(passing).envelope], ()))
        frame, self._next = self._next, next(self._body, None)
        assert frame is not None
        return frame

    def _start(self) -> None:
        """Begin with the first messages, up to one that has a body."""
        envelopes: list[pb.Envelope] = []
        body: tuple[memoryview, ...] = ()
        while self._waiting and not body and len(envelopes) < TOGETHER:
            message = self._waiting.popleft()
            outgoing = encode(message, self._told)
            if isinstance(message, TaskAssignment | ModelResponse) and message.model is not None:
                self._told = message.model.layout
            envelopes.append(outgoing.envelope)
            body, self._speaks_of = outgoing.body, _subject(message)
        self._body = frames(envelopes, body)
        self._next = next(self._body)

    def _take_passing(self) -> Message | None:
        """The first message that may be sent before the body under way is complete."""
        before = {self._speaks_of}
        for place, message in enumerate(self._waiting):
            subject = _subject(message)
            small = not isinstance(message, TaskAssignment | ModelResponse | UpdateSubmission)
            free = subject not in before and _EVERYTHING not in before and subject is not _EVERYTHING
            if isinstance(message, Heartbeat) or (small and free):
                del self._waiting[place]  # `remove` would compare tensors
                return message
            before.add(subject)
        return None


def _subject(message: Message) -> object:
    """The task that a message speaks of; one that speaks of none keeps its place among all."""
    return getattr(message, "task", _EVERYTHING)
