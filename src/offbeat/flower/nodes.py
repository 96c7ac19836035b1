"""The server's record of a Flower node: queued messages, the one that is sent, early replies."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from offbeat.core.events import TaskId
from offbeat.net.messages import FromServer, FromSite, ModelResponse, TaskAssignment, TaskCancel, UpdateAck

MOST_QUEUED = 32


@dataclass
class Node:
    """A Flower node as the server knows it.

    A node works on one Flower message at a time, `sent`. `unanswered` has the tasks of the messages whose
    replies may still come: of that one, and of those from before the node was away. What it sends before it
    has registered again waits in `early`. `refused` is the reason why it does not take part, if it does not.
    """

    id: int
    name: str
    online: bool = False
    activated: str = ""
    registered: bool = False
    sent: str | None = None
    unanswered: dict[str, TaskId | None] = field(default_factory=dict)
    queued: list[FromServer] = field(default_factory=list)
    early: list[FromSite] = field(default_factory=list)
    refused: str | None = None
    failures: int = 0
    not_before: float = 0.0

    def queue(self, message: FromServer) -> None:
        """Queue a message for the next Flower message, if it is for a node at all."""
        if isinstance(message, TaskAssignment):
            # A newer assignment replaces an earlier one that has not been sent.
            self.queued = [m for m in self.queued if not isinstance(m, TaskAssignment | ModelResponse)]
        if isinstance(message, TaskAssignment | ModelResponse | TaskCancel | UpdateAck):
            self.queued = [*self.queued, message][-MOST_QUEUED:]

    def free(self, now: float) -> bool:
        """Whether the node can be sent a message: it is there, has answered, and has not just failed."""
        return self.online and self.sent is None and now >= self.not_before

    def ready(self, now: float) -> bool:
        """Whether the queue is to be sent now: the node is free, and there is something to train."""
        return self.registered and self.free(now) and _task(self.queued) is not None

    def mark_sent(self, message: str, content: Sequence[FromServer] = ()) -> None:
        """A Flower message with this id is sent."""
        self.sent, self.queued = message, []
        self.unanswered[message] = _task(content)

    def mark_answered(self, message: str) -> tuple[bool, TaskId | None]:
        """A Flower message is answered. Returns whether it was the newest, and its task."""
        newest = message == self.sent
        if newest:
            self.sent = None
        return newest, self.unanswered.pop(message, None)

    def reset(self) -> None:
        """The node is away, or has just come back: it is to register again, and is sent everything again."""
        self.sent, self.registered, self.queued = None, False, []


def _task(messages: Sequence[FromServer]) -> TaskId | None:
    """The task to train."""
    tasks = [m.task for m in messages if isinstance(m, TaskAssignment | ModelResponse)]
    return tasks[-1] if tasks else None
