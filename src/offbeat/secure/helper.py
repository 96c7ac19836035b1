"""A helper: it decrypts seeds, and answers with weighted sums of masks that no two sets of updates share.

It holds each release to the committee's bounds, and each update to one release. Both are durable before it
answers, so that it gives the same answer again after a crash, and never another.
"""

from hashlib import sha256
from itertools import chain

import numpy as np

from offbeat.core.events import TaskId
from offbeat.secure.committee import Committee, hashed_text
from offbeat.secure.helper_file import HelperFile, TaskRelease
from offbeat.secure.masks import HelperKey, add_masks
from offbeat.secure.messages import UnmaskEntry, UnmaskRefused, UnmaskRequest, UnmaskShare
from offbeat.secure.refusals import SecureRefusal

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
        self._key = HelperKey(file.key)

    @property
    def public_key(self) -> bytes:
        """The key to which sites encrypt, 32 bytes."""
        return self._key.public

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
        if (self.name, self.public_key) not in [(own.name, own.public_key) for own in committee.helpers]:
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
