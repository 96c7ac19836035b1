"""Unmasking: the server's state machine for the sum of one release, without input and output.

This is that of a committee of T + 1 helpers, which does not vote and needs every helper; `voted_unmasking`
has the other. CHECKING: every helper checks the release, and writes nothing. Updates whose seeds do not
decrypt are left out. Then the manifest becomes durable, and never changes. ASKING: each helper tells the sum
of masks of the group of seeds that it alone holds. DONE: the masks are taken off the weighted sum of masked
vectors.

What is to be done comes as effects, to be carried out in order; answers, arrivals and time are passed in.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Annotated

import numpy as np
from pydantic import Field

from offbeat.core.errors import RunError
from offbeat.core.events import TaskId
from offbeat.core.privacy.sums import Integers
from offbeat.core.types import NUMBER
from offbeat.core.validation import checked_dataclass
from offbeat.secure.committee import Committee, Entry
from offbeat.secure.effects import AskHelper, CommitManifest, Effect, MaskedEntry, WarnOperator
from offbeat.secure.messages import UnmaskEntry, UnmaskRefused, UnmaskRequest, UnmaskShare, Words
from offbeat.secure.refusals import SecureRefusal

WARN_EVERY = 60.0  # s
LONGEST_REASON = 200  # characters of a helper's reason


@checked_dataclass
class UnmaskingTimes:
    """How long the server waits for the helpers of a release.

    Attributes:
        timeout: Seconds after which the server asks another helper in place of a silent one, if they vote.
        give_up: Seconds after which the release fails. None means never.
    """

    timeout: Annotated[float, Field(ge=1, le=3600), NUMBER] = 30.0
    give_up: Annotated[float, Field(gt=0), NUMBER] | None = 3600.0


class UnmaskingPhase(Enum):
    """Where an unmasking is."""

    CHECKING = "checking"
    VOTING = "voting"
    ASKING = "asking"
    DONE = "done"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether nothing more is asked."""
        return self in (UnmaskingPhase.DONE, UnmaskingPhase.FAILED)


def check_instance(name: str, seen: int, instance: int) -> None:
    """Refuse a helper whose file was restored from a copy.

    Args:
        name: The helper's name.
        seen: The largest instance number of this helper that the server has seen.
        instance: The one it has now.

    Raises:
        UsageError: It is smaller.
    """
    if instance < seen:
        raise SecureRefusal.ROLLED_BACK.error(name=name)


class Unmasking:
    """The unmasking of one release.

    Args:
        committee: The helpers and their bounds.
        release: Number of the release.
        entries: Its updates.
        vector: Gives the masked vector of a task, uint32 [L].
        now: Seconds of the driver's clock.
        times: How long it waits.
        manifest: What an earlier process made durable; None for a new release.

    Raises:
        RunError: The updates are not those of the manifest.

    Attributes:
        phase: Where it is.
        left_out: Tasks whose seeds do not decrypt.
        complaints: Names of the helpers that say so of a task, by task.
        at_fault: Why helpers are to blame, by their number: nobody, as nobody else can check what one says.
        total: S = Σ c̃ y, int64 [L], when it is done.
        reason: Why it failed.
        instances: The instance number of each helper that has answered with a sum, to be durable with the
            outcome: `check_instance` compares it when the helper comes again.
    """

    def __init__(
        self,
        committee: Committee,
        release: int,
        entries: Sequence[MaskedEntry],
        vector: Callable[[TaskId], Words],
        now: float,
        times: UnmaskingTimes = UnmaskingTimes(),  # noqa: B008  # frozen
        manifest: CommitManifest | None = None,
    ) -> None:
        self.committee, self.release, self._vector, self._times = committee, release, vector, times
        self.instances: dict[int, int] = {}
        self.phase = UnmaskingPhase.CHECKING if manifest is None else UnmaskingPhase.ASKING
        self.left_out: tuple[TaskId, ...] = () if manifest is None else manifest.left_out
        self.total: Integers | None = None
        self.reason: str | None = None
        self.complaints: dict[TaskId, tuple[str, ...]] = {}
        self.at_fault: dict[int, str] = {}
        self._entries = tuple(sorted(entries, key=lambda entry: entry.task))
        if manifest is not None:
            self._leave_out(manifest.left_out)
        self._manifest = committee.manifest(release, bare_entries(self._entries))
        check_manifest(manifest, release, self._manifest)
        self._started = self._heard = self._warned = now
        self._present: set[int] = set()
        self._checked: set[int] = set()
        # The groups of the request that each helper has not answered; none in a check.
        self._asked: dict[int, tuple[int, ...]] = {}
        # The sum of masks of each helper that has told it.
        self._sums: dict[int, Words] = {}

    @property
    def helpers(self) -> tuple[int, ...]:
        """The helpers whose sums of masks are known, by number."""
        return tuple(sorted(self._sums))

    @property
    def deadline(self) -> float:
        """When `tick` is to be called next, in seconds of the driver's clock."""
        give_up = [] if self._times.give_up is None else [self._started + self._times.give_up]
        return min([*give_up, max(self._heard, self._warned) + WARN_EVERY])

    def begin(self, helpers: Iterable[int], now: float) -> list[Effect]:
        """Begin with the helpers that are there."""
        self._present |= set(helpers)
        return self._advance()

    def arrived(self, helper: int, now: float) -> list[Effect]:
        """A helper has connected, or connected again: requests to it before are lost."""
        self._asked.pop(helper, None)
        self._present.add(helper)
        return self._advance()

    def departed(self, helper: int, now: float) -> list[Effect]:
        """A helper is gone, and requests to it are lost."""
        self._asked.pop(helper, None)
        self._present.discard(helper)
        return self._advance()

    def answered(self, helper: int, answer: UnmaskShare | UnmaskRefused, now: float) -> list[Effect]:
        """A helper has answered; answers for another release, or without a request, are ignored."""
        if answer.release != self.release or self.phase.over or helper not in self._asked:
            return []
        effects: list[Effect] = []
        if isinstance(answer, UnmaskRefused):
            self._refused(helper, answer)
        elif answer.groups != self._asked[helper]:
            # The share answers what was asked before a reconnection, or in the check.
            return []
        elif not self._taken(helper, answer):
            self._fail_by(helper, "has answered with another release or length")
            wrong = SecureRefusal.WRONG_SHARE.format(release=self.release, name=self._name(helper))
            effects = [WarnOperator(wrong)]
        self._heard = now
        return [*effects, *self._advance()]

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""
        give_up = self._times.give_up
        if self.phase.over:
            return []
        if give_up is not None and now >= self._started + give_up:
            names = ", ".join(self._missing)
            self._fail(SecureRefusal.GIVEN_UP.format(release=self.release, seconds=give_up, names=names))
        elif now >= max(self._heard, self._warned) + WARN_EVERY:
            self._warned = now
            return [WarnOperator(waits_for(self.release, self._missing, now - self._heard))]
        return []

    def again(self, now: float) -> list[Effect] | None:
        """Ask no other helpers: nobody else holds a helper's seeds."""
        return None

    def _advance(self) -> list[Effect]:
        effects: list[Effect] = []
        if self.phase is UnmaskingPhase.CHECKING:
            effects += self._check()
        if self.phase is UnmaskingPhase.ASKING:
            effects += self._ask()
        return effects

    def _check(self) -> list[Effect]:
        if len(self._checked & self._present) == len(self.committee.helpers):
            return self._commit()
        return [self._request(helper, ()) for helper in self._unasked(self._checked)]

    def _ask(self) -> list[Effect]:
        if len(self._sums) == len(self.committee.helpers):
            self._finish()
        held = self.committee.held_by
        return [self._request(helper, tuple(held(helper))) for helper in self._unasked(self._sums)]

    def _unasked(self, known: Iterable[int]) -> list[int]:
        """The helpers that are there, but for those that are asked or have answered."""
        return sorted(self._present - self._asked.keys() - set(known))

    def _commit(self) -> list[Effect]:
        """Fix the manifest, without the updates that are left out."""
        self._leave_out(self.left_out)
        entries = bare_entries(self._entries)
        if reason := refusal(self.committee, self.release, entries, self.left_out, self.complaints):
            self._fail(reason)
            return []
        self._manifest = self.committee.manifest(self.release, entries)
        self.phase = UnmaskingPhase.ASKING
        return [CommitManifest(self.release, entries, self.left_out, self._manifest)]

    def _refused(self, helper: int, answer: UnmaskRefused) -> None:
        own = {entry.task for entry in self._entries}
        wrong = set(answer.tasks) & own
        if not answer.tasks:
            name = self._name(helper)
            reason = " ".join(answer.reason.split())[:LONGEST_REASON]
            self._fail(SecureRefusal.REFUSED.format(release=self.release, name=name, reason=reason))
        elif self.phase is UnmaskingPhase.CHECKING:
            del self._asked[helper]
            self._checked.add(helper)
            self.left_out = tuple(sorted({*self.left_out, *wrong}))
            for task in wrong:
                self.complaints[task] = (*self.complaints.get(task, ()), self._name(helper))
        else:
            self._fail_by(helper, "says that seeds do not decrypt, which it has not said before")

    def _taken(self, helper: int, share: UnmaskShare) -> bool:
        """Keep the answer to a request; False for one that cannot be right."""
        checking = self.phase is UnmaskingPhase.CHECKING
        length = 0 if checking else self.committee.parameters
        del self._asked[helper]
        if share.manifest != self._manifest or len(share.total) != length:
            return False
        if checking:
            self._checked.add(helper)
        else:
            self.instances[helper] = share.instance
            self._sums[helper] = share.total
        return True

    def _finish(self) -> None:
        masked = ((self._vector(entry.task), entry.weight) for entry in self._entries)
        self.total = unmasked(self.committee.parameters, masked, self._sums.values())
        self.phase = UnmaskingPhase.DONE

    def _fail(self, reason: str) -> None:
        self.phase, self.reason = UnmaskingPhase.FAILED, reason
        self._asked.clear()

    def _fail_by(self, helper: int, why: str) -> None:
        """Fail by the answer of a helper, without which there is no sum."""
        told = f"helper {self._name(helper)} {why}"
        self._fail(SecureRefusal.FEW_ANSWERS.format(release=self.release, told=told))

    def _leave_out(self, tasks: Iterable[TaskId]) -> None:
        out = set(tasks)
        self._entries = tuple(entry for entry in self._entries if entry.task not in out)

    def _request(self, helper: int, groups: tuple[int, ...]) -> AskHelper:
        """Ask a helper for the sum of these groups, or for a check if there are none."""
        self._asked[helper] = groups
        entries = tuple(
            UnmaskEntry(entry.task, entry.client, entry.site, entry.weight, entry.boxes[helper])
            for entry in self._entries
        )
        request = UnmaskRequest(self.release, self.committee.digest, groups, entries, check=not groups)
        return AskHelper(helper, request)

    def _name(self, helper: int) -> str:
        return self.committee.helpers[helper].name

    @property
    def _missing(self) -> list[str]:
        """Names of the helpers that could bring the release on."""
        known = self._checked & self._present if self.phase is UnmaskingPhase.CHECKING else self._sums.keys()
        return [helper.name for number, helper in enumerate(self.committee.helpers) if number not in known]


def waits_for(release: int, names: Sequence[str], seconds: float) -> str:
    """The helpers that a release waits for, in words.

    Args:
        release: Number of the release.
        names: The helpers that could bring it on.
        seconds: For how long.
    """
    which = {0: "no helper is left", 1: f"{names[0] if names else ''}: it has not"}.get(len(names))
    if which is None:
        which = f"one of {', '.join(names)}: {'neither' if len(names) == 2 else 'none'} has"
    return f"release {release} waits for {which} answered for {seconds:.0f} s"


def bare_entries(entries: Iterable[MaskedEntry]) -> tuple[Entry, ...]:
    """Task, client and weight of each update."""
    return tuple((entry.task, entry.client, entry.weight) for entry in entries)


def check_manifest(recorded: CommitManifest | None, release: int, manifest: bytes) -> None:
    """Raises `RunError` where a release has other updates than it had when its manifest became durable."""
    if recorded is not None and recorded.manifest != manifest:
        raise RunError(f"release {release} has other updates than it had: restore the directory as a whole")


def refusal(
    committee: Committee,
    release: int,
    entries: tuple[Entry, ...],
    left_out: tuple[TaskId, ...],
    complaints: Mapping[TaskId, tuple[str, ...]],
) -> str | None:
    """Why a committee makes no sum of the updates that are not left out; None if it does."""
    reason = committee.refusal(release, entries) or committee.weight_refusal(release, entries)
    if not reason or not left_out:
        return reason
    names = ", ".join(sorted({name for names in complaints.values() for name in names}))
    return SecureRefusal.LEFT_OUT.format(release=release, left_out=len(left_out), names=names, reason=reason)


def unmasked(length: int, masked: Iterable[tuple[Words, int]], masks: Iterable[Words]) -> Integers:
    """S, int64 [L]: the weighted sum of masked vectors, less the helpers' sums of masks."""
    total = np.zeros(length, np.uint32)
    for vector, weight in masked:
        total += vector * np.uint32(weight)
    for each in masks:
        total -= each
    return total.view(np.int32).astype(np.int64)
