"""The server's letters to one node: what waits, what is on its way, what has come back too early."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from offbeat.core.events import TaskId
from offbeat.net.messages import FromServer, FromSite, ModelResponse, TaskAssignment, TaskCancel, UpdateAck

MOST_WAITING = 32


@dataclass
class Node:
    """A Flower node as the server knows it.

    A node works on one message at a time, so one letter at a time is on its way: `letter`, about `task`;
    replies to letters from before it was away may still come (`older`). What it says before it has been
    greeted again waits in `early`. `refused` says why it does not take part, if it does not.
    """

    id: int
    name: str
    online: bool = False
    activated: str = ""
    greeted: bool = False
    letter: str | None = None
    task: TaskId | None = None
    older: dict[str, TaskId | None] = field(default_factory=dict)
    waiting: list[FromServer] = field(default_factory=list)
    early: list[FromSite] = field(default_factory=list)
    refused: str | None = None
    failures: int = 0
    not_before: float = 0.0

    @property
    def outstanding(self) -> list[str]:
        """Ids of the messages whose replies may still come."""
        return [*self.older, *([self.letter] if self.letter is not None else [])]

    def queue(self, message: FromServer) -> None:
        """Say this with the next letter, if it is for the site at all."""
        if isinstance(message, TaskAssignment):  # a task that was to begin has been given up since
            self.waiting = [m for m in self.waiting if not isinstance(m, TaskAssignment | ModelResponse)]
        if isinstance(message, TaskAssignment | ModelResponse | TaskCancel | UpdateAck):
            self.waiting = [*self.waiting, message][-MOST_WAITING:]

    def ready(self) -> Sequence[FromServer]:
        """What goes into a letter now: nothing, unless there is something to do and the node is free."""
        free = self.online and self.greeted and self.letter is None
        return (
            self.waiting
            if free and any(isinstance(m, TaskAssignment | ModelResponse) for m in self.waiting)
            else ()
        )

    def sent(self, letter: str, messages: Sequence[FromServer] = ()) -> None:
        """A letter is on its way."""
        self.letter, self.waiting = letter, []
        self.task = next(
            (m.task for m in reversed(messages) if isinstance(m, TaskAssignment | ModelResponse)), None
        )

    def answered(self, letter: str) -> tuple[bool, TaskId | None]:
        """A letter is answered: was it the newest, and of which task was it?"""
        if letter == self.letter:
            self.letter, task, self.task = None, self.task, None
            return True, task
        return False, self.older.pop(letter, None)

    def away(self) -> None:
        """The node is not there, or has just come back: it is to be greeted again."""
        if self.letter is not None:
            self.older[self.letter] = self.task
        self.letter = self.task = None
        self.greeted = False
        self.waiting = []  # it will be said again
