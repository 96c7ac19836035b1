"""The interface of a transport: one connection between the server and a site.

A transport delivers messages whole and in order, or ends the connection. It authenticates the site before the
server hears of it, and refuses what is too large before it allocates memory for it. A site has one connection
at a time: a newer one ends the older. The first message of a site is its `Register`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from offbeat.net.messages import FromServer, FromSite


@dataclass(frozen=True, slots=True)
class Transfer:
    """How much of a message with tensors has gone, or come.

    Attributes:
        kind: Kind of the message, the name of its class.
        what: The message in words, such as "the update of task 7".
        done: Bytes of the tensors that have been sent or received.
        size: Bytes of all of them.
        arrived: Those that are known to have come, of `done`. A sender knows what its peer had when it began.
    """

    kind: str
    what: str
    done: int
    size: int
    arrived: int = 0


_WORDS = {
    "TaskAssignment": "the model of task {0.task} (version {0.base})",
    "ModelResponse": "the model of version {0.version} for task {0.task}",
    "EvaluationRequest": "the model of version {0.version}, to evaluate",
    "RunFinished": "the final model",
    "UpdateSubmission": "the update of task {0.task}",
    "UnmaskShare": "the sum of release {0.release}",
}


def transfer(message: object, done: int, size: int, arrived: int = 0) -> Transfer:
    """The transfer of a message with tensors, or of the envelope that announces it: they have one name."""
    kind = type(message).__name__
    return Transfer(kind, _WORDS[kind].format(message), done, size, arrived)


class ChannelClosedError(ConnectionError):
    """The connection has ended; the text has the reason.

    Attributes:
        transfers: The last message with tensors that was sent, and the one that was being received.
    """

    transfers: tuple[Transfer, ...] = ()


class ChannelRefusedError(ChannelClosedError):
    """The peer refuses the credential or a message; another attempt without a change is of no use."""


class CredentialRefusedError(ChannelRefusedError):
    """The peer does not know the credential now; it may have lost a file that has it."""


class CredentialRevokedError(ChannelRefusedError):
    """Somebody has ended the credential: no attempt with it will do."""


_ERRORS: dict[str, type[ChannelClosedError]] = {
    "revoked": CredentialRevokedError,
    "credential": CredentialRefusedError,
    "refused": ChannelRefusedError,
}
"""The error of an end by its kind; that of every other kind is `ChannelClosedError`."""


@dataclass(frozen=True, slots=True)
class CloseReason:
    """The reason of a connection's end; `kind` is the word to count it under, "" if nothing failed."""

    reason: str
    kind: str = ""

    @classmethod
    def of(cls, error: ChannelClosedError) -> "CloseReason":
        """The reason that an error of the stream tells."""
        kind = next((kind for kind, known in _ERRORS.items() if isinstance(error, known)), "")
        return cls(str(error), kind)

    @property
    def error(self) -> ChannelClosedError:
        """The error that tells it."""
        return _ERRORS.get(self.kind, ChannelClosedError)(self.reason)


class ProtocolError(Exception):
    """The peer broke the protocol; `kind` is the word under which such errors are counted."""

    def __init__(self, reason: str, kind: str = "message") -> None:
        super().__init__(reason)
        self.kind = kind


Put = Callable[["FromSite", Callable[[], None]], None]
"""Takes a message, and a function to call once the message has been processed."""


class ServerChannel(Protocol):
    """The server's end."""

    @property
    def site(self) -> str:
        """The name that the site's credential proves."""

    @property
    def sending(self) -> bool:
        """Whether a queued message has not been sent whole."""

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """The messages with tensors that are on their way, to the site and from it."""

    @property
    def took(self) -> float:
        """Seconds in which the tensors of the last message came, over however many connections."""

    def send(self, message: "FromServer") -> None:
        """Queue a message. A site that lets the queue grow full is disconnected.

        Does nothing on a closed connection: `receive` and `forward` report the end.
        """

    async def receive(self) -> "FromSite":
        """The next message. Raises `ChannelClosedError`."""

    async def forward(self, put: Put) -> None:
        """Pass every message to `put` as it comes; while too many are unprocessed, read no more.

        The tensors of a message are the receiver's, which may write to them.

        Raises `ChannelClosedError` at the end of the connection.
        """

    def end(self, reason: str = "") -> None:
        """Close the connection once the queue is sent; does not wait."""

    async def close(self, reason: str = "") -> None:
        """Close the connection once the queue is sent, and wait for it."""


class ClientChannel(Protocol):
    """The site's end."""

    @property
    def took(self) -> float:
        """Seconds in which the tensors of the last message came, over however many connections."""

    def send(self, message: "FromSite") -> None:
        """Queue a message; does nothing on a closed connection."""

    async def receive(self) -> "FromServer":
        """The next message. Raises `ChannelClosedError`."""

    async def close(self, reason: str = "") -> None:
        """Close the connection once the queue is sent, and wait for it."""


OnChannel = Callable[[ServerChannel], Awaitable[None]]
"""The server's handler of a connection that a transport has opened; the connection ends when it returns."""
