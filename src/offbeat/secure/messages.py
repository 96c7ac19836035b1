"""What the server and a helper say to each other about one release."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from offbeat.core.events import ClientId, TaskId

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class UnmaskEntry:
    """An update of a release, as one helper sees it.

    Attributes:
        task: Its task.
        client: Its client.
        site: The name of the client's site.
        weight: c̃, its integer weight.
        box: Its seeds, encrypted to this helper.
    """

    task: TaskId
    client: ClientId
    site: str
    weight: int
    box: bytes = field(repr=False)


@dataclass(frozen=True)
class UnmaskRequest:
    """The server asks a helper for a weighted sum of masks.

    Attributes:
        release: Number of the release.
        committee: Digest of the committee.
        groups: The groups of seeds whose masks are summed.
        entries: The updates.
        check: Whether the helper only checks, writes nothing, and answers without a sum.
    """

    release: int
    committee: bytes
    groups: tuple[int, ...]
    entries: tuple[UnmaskEntry, ...]
    check: bool = False


@dataclass(frozen=True)
class UnmaskShare:
    """A helper's answer.

    Attributes:
        release: Number of the release.
        manifest: Digest of the updates and weights that are summed.
        groups: The groups that the sum is of: an answer may come after its groups were asked of others.
        instance: How many releases the helper's file has seen. A file restored from a copy has fewer.
        total: Σ c̃ PRG(s_g) modulo 2³² over updates and groups, [L]; empty for a check.
    """

    release: int
    manifest: bytes
    groups: tuple[int, ...]
    instance: int
    total: Words = field(repr=False)


@dataclass(frozen=True)
class UnmaskRefused:
    """A helper does not answer.

    Attributes:
        release: Number of the release.
        reason: Why, in one sentence.
        tasks: The tasks whose seeds do not decrypt; empty where the release as a whole is refused.
    """

    release: int
    reason: str
    tasks: tuple[TaskId, ...] = ()
