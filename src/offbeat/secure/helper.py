"""A helper: it decrypts seeds, and answers with weighted sums of masks that no two sets of updates share.

It holds each release to the committee's bounds, and each update to one release. Both are durable before it
answers, so that it gives the same answer again after a crash, and never another. Where helpers vote it signs
the release first, and gives sums only of one that a quorum has signed: no two releases of an update have one.
"""

from hashlib import sha256
from itertools import chain

import numpy as np

from offbeat.core.events import TaskId
from offbeat.secure.committee import Committee, CommitteeMember, hashed_text
from offbeat.secure.helper_file import HelperFile, TaskRelease
from offbeat.secure.masks import HelperKey, add_masks
from offbeat.secure.messages import UnmaskEntry, UnmaskRefused, UnmaskRequest, UnmaskShare, Words
from offbeat.secure.refusals import SecureRefusal
from offbeat.secure.votes import VoteKey, count_votes

Seeds = list[dict[int, bytes]]
_TOP = 2**63


class Helper:
    """The state machine of a helper.

    Args:
        name: Its name in the committee.
        file: Its durable state.

    Raises:
        RunError: The file is damaged.
    """

    def __init__(self, name: str, file: HelperFile) -> None:
        self.name, self._file = name, file
        self._key, self._vote_key = HelperKey(file.key), VoteKey(file.key)
        # Digests of the sums of the last release.
        self._told: tuple[bytes, tuple[bytes, ...]] = b"", ()

    @property
    def public_key(self) -> bytes:
        """The key to which sites encrypt, 32 bytes."""
        return self._key.public

    @property
    def verify_key(self) -> bytes:
        """The key by which its votes are verified, 32 bytes."""
        return self._vote_key.public

    @property
    def instance(self) -> int:
        """Number of releases; the server refuses one that is lower than it was."""
        return self._file.instance

    @property
    def committee(self) -> Committee | None:
        """The committee it serves."""
        return self._file.committee

    def serve(self, committee: Committee) -> None:
        """Serve a committee from now on; durable when this returns.

        Raises:
            UsageError: The committee has not this helper's key, or this helper serves another one.
            RunError: It cannot be made durable.
        """
        if self.committee is not None and self.committee.digest != committee.digest:
            raise SecureRefusal.COMMITTED.error(name=self.name)
        if CommitteeMember(self.name, self.public_key, self.verify_key) not in committee.helpers:
            raise SecureRefusal.OWN_KEY.error(name=self.name)
        if self.committee is None:
            self._file.adopt(committee)

    def answer(self, request: UnmaskRequest) -> UnmaskShare | UnmaskRefused:
        """The answer to a request. Raises `RunError` where the release cannot be made durable."""
        committee, release = self.committee, request.release
        if committee is None or request.committee != committee.digest:
            return UnmaskRefused(release, SecureRefusal.OTHER_COMMITTEE.format(release=release))
        entries = [(entry.task, entry.client, entry.weight) for entry in request.entries]
        if not all(-_TOP <= number < _TOP for number in chain((release,), *entries)):
            return UnmaskRefused(release, SecureRefusal.NUMBERS.value)
        if committee.votes:
            boxes = {entry.task: entry.box for entry in request.entries}
            manifest = committee.voted_manifest(release, entries, boxes)
            released = TaskRelease(release, manifest)
        else:
            manifest = committee.manifest(release, entries)
            released = TaskRelease(release, _with_boxes(manifest, request.entries))
        earlier = self._file.released(task for task, _, _ in entries)
        reason = (
            committee.refusal(release, entries)
            or _released_before(earlier, released)
            or committee.weight_refusal(release, entries)
            or self._group_refusal(committee, request.groups)
        )
        if reason:
            return UnmaskRefused(release, reason)
        if committee.votes and not request.check:
            return self._voted(committee, request, released, bool(earlier))
        seeds, wrong = self._seeds(committee, request.entries)
        if wrong:
            return UnmaskRefused(release, SecureRefusal.SEEDS.format(task=wrong[0]), wrong)
        if not request.check and not earlier:
            self._file.add((task for task, _, _ in entries), released)
        total = np.zeros(0 if request.check else committee.parameters, np.uint32)
        pairs = [
            (own[group], entry.weight)
            for entry, own in zip(request.entries, seeds, strict=True)
            for group in sorted(set(request.groups))
        ]
        add_masks(total, [seed for seed, _ in pairs], [weight for _, weight in pairs])
        return UnmaskShare(release, manifest, request.groups, self.instance, total)

    def _voted(
        self, committee: Committee, request: UnmaskRequest, released: TaskRelease, voted: bool
    ) -> UnmaskShare | UnmaskRefused:
        """A vote for a release; or, once enough helpers have voted for it, sums of masks.

        A vote needs no seeds: who cannot open a box votes all the same.
        """
        release, manifest = released
        needed, none = committee.needed, np.zeros(0, np.uint32)
        if request.votes and (votes := count_votes(committee, manifest, request.votes)) < needed:
            return UnmaskRefused(
                release, SecureRefusal.FEW_VOTES.format(release=release, votes=votes, needed=needed)
            )
        if not voted:
            self._file.add((entry.task for entry in request.entries), released)
        if not request.votes:
            vote = self._vote_key.sign(manifest)
            return UnmaskShare(release, manifest, request.groups, self.instance, none, vote)
        seeds, wrong = self._seeds(committee, request.entries)
        if wrong:
            return UnmaskRefused(release, SecureRefusal.SEEDS.format(task=wrong[0]), wrong)
        weights = [entry.weight for entry in request.entries]
        total = np.zeros(committee.parameters if request.groups else 0, np.uint32)
        digests = list(self._told[1]) if self._told[0] == manifest else []
        for group in committee.held_by(self._number(committee)) if not digests else set(request.groups):
            own = np.zeros(committee.parameters, np.uint32)
            add_masks(own, [seed[group] for seed in seeds], weights)
            if self._told[0] != manifest:
                digests.append(digest_of(own))
            if group in request.groups:
                total += own
        self._told = manifest, tuple(digests)
        return UnmaskShare(release, manifest, request.groups, self.instance, total, b"", self._told[1])

    def _group_refusal(self, committee: Committee, groups: tuple[int, ...]) -> str | None:
        held = committee.held_by(self._number(committee))
        return next((SecureRefusal.GROUP.format(group=group) for group in groups if group not in held), None)

    def _seeds(
        self, committee: Committee, entries: tuple[UnmaskEntry, ...]
    ) -> tuple[Seeds, tuple[TaskId, ...]]:
        """The seeds of each update, and the tasks of those that do not decrypt."""
        number, seeds, wrong = self._number(committee), [], []
        for entry in entries:
            own = self._key.open(entry.box, committee, entry.task, entry.client, entry.site, number)
            if own is None:
                wrong.append(entry.task)
            else:
                seeds.append(own)
        return seeds, tuple(wrong)

    def _number(self, committee: Committee) -> int:
        return [helper.name for helper in committee.helpers].index(self.name)


def digest_of(total: Words) -> bytes:
    """SHA-256 of a sum of masks, by which the holders of its seeds compare it."""
    return sha256(total.astype("<u4", copy=False).tobytes()).digest()


def _with_boxes(manifest: bytes, entries: tuple[UnmaskEntry, ...]) -> bytes:
    """The digest of a release with its boxes: the same updates with other seeds would be another sum."""
    boxes = (entry.box for entry in sorted(entries, key=lambda entry: entry.task))
    return sha256(hashed_text(manifest, *boxes)).digest()


def _released_before(earlier: dict[TaskId, TaskRelease], released: TaskRelease) -> str | None:
    """Why tasks may not be released; None if they were not, or in this very release."""
    for task, own in sorted(earlier.items()):
        if own != released:
            return SecureRefusal.RELEASED.format(task=task, earlier=own.release)
    return None
