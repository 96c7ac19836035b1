"""Messages between the server and a helper about one release."""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from offbeat.core.events import ClientId, TaskId
from offbeat.secure.bounds import ENTRIES, HELPERS, Boxes, Digest, Name, Reason, Signature

Words = npt.NDArray[np.uint32]
_Numbers = Annotated[tuple[int, ...], Meta(max_length=ENTRIES)]


@dataclass(frozen=True)
class UnmaskEntry:
    """An update of a release, as one helper sees it.

    Attributes:
        task: Its task.
        client: Its client.
        site: The name of the client's site.
        weight: c̃, its integer weight.
        box: Its seeds, encrypted to this helper; where helpers vote, the boxes of all of them in order.
    """

    task: TaskId
    client: ClientId
    site: Name
    weight: int
    box: Boxes = field(repr=False)


@dataclass(frozen=True)
class UnmaskRequest:
    """The server asks a helper for a weighted sum of masks.

    Helpers that vote are asked up to three times about a release: to check its updates, then (without votes)
    to sign it, then (with the votes of the others) for sums.

    Attributes:
        release: Number of the release.
        committee: Digest of the committee.
        groups: The groups of seeds whose masks are summed.
        entries: The updates.
        check: Whether the helper only checks, writes nothing, and answers without a sum.
        votes: The signature of each helper in order, where helpers vote; empty ones of those that have not.
    """

    release: int
    committee: Digest
    groups: _Numbers
    entries: Annotated[tuple[UnmaskEntry, ...], Meta(max_length=ENTRIES)]
    check: bool = False
    votes: Annotated[tuple[Signature, ...], Meta(max_length=HELPERS)] = field(default=(), repr=False)


@dataclass(frozen=True)
class UnmaskShare:
    """A helper's answer.

    Attributes:
        release: Number of the release.
        manifest: Digest of the updates and weights that are summed.
        groups: The groups that the sum is of: an answer may come after its groups were asked of others.
        instance: How many releases the helper's file has seen. A file restored from a copy has fewer.
        total: Σ c̃ PRG(s_g) modulo 2³² over updates and groups, [L]; empty for a check.
        vote: The helper's signature of the manifest, where it was asked for one.
        sums: SHA-256 of Σ c̃ PRG(s_g) over the updates for each group that the helper holds, in order, where
            helpers vote: the other holders of a group say the same.
    """

    release: int
    manifest: Digest
    groups: _Numbers
    instance: int
    total: Words = field(repr=False)
    vote: Signature = b""
    sums: Annotated[tuple[Digest, ...], Meta(max_length=ENTRIES)] = ()


@dataclass(frozen=True)
class UnmaskRefused:
    """A helper does not answer.

    Attributes:
        release: Number of the release.
        reason: Why, in one sentence.
        tasks: The tasks whose seeds do not decrypt; empty where the release as a whole is refused.
    """

    release: int
    reason: Reason
    tasks: _Numbers = ()
