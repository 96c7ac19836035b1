"""Inputs and effects of the unmasking of a release."""

from dataclasses import dataclass, field

from offbeat.core.events import ClientId, TaskId
from offbeat.secure.committee import Entry
from offbeat.secure.messages import UnmaskRequest


@dataclass(frozen=True)
class MaskedEntry:
    """An update of a release, at the server.

    Attributes:
        task: Its task.
        client: Its client.
        site: The name of the client's site.
        weight: c̃, its integer weight.
        boxes: Its seeds for each helper.
    """

    task: TaskId
    client: ClientId
    site: str
    weight: int
    boxes: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True)
class AskHelper:
    """Send a request to a helper, by its number."""

    helper: int
    request: UnmaskRequest


@dataclass(frozen=True)
class CommitManifest:
    """Make durable which updates a release has, before the effects that follow.

    Attributes:
        release: Number of the release.
        entries: Its updates: task, client and weight.
        left_out: Tasks whose seeds do not decrypt.
        manifest: The digest that binds them.
    """

    release: int
    entries: tuple[Entry, ...]
    left_out: tuple[TaskId, ...]
    manifest: bytes


@dataclass(frozen=True)
class WarnOperator:
    """Log a warning."""

    text: str


Effect = AskHelper | CommitManifest | WarnOperator
