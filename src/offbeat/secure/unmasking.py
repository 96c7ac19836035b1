"""Unmasking: the server's state machine for the sum of one release, without input and output.

This is that of a committee that does not vote; `voted_unmasking` has the other. CHECKING: every helper that
is there checks the release, and writes nothing. Updates whose seeds do not decrypt are left out. Then the
manifest becomes durable, and never changes. ASKING: the groups of seeds are shared out over T + 1 helpers;
those of a silent or absent one go to others. DONE: the masks are taken off the weighted sum of masked
vectors.

What is to be done comes as effects, to be carried out in order; answers, arrivals and time are passed in.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
        timeout: Seconds after which the server asks another helper in place of a silent one.
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


@dataclass
class AskedHelper:
    """A request that a helper has not answered."""

    helper: int
    groups: tuple[int, ...]
    since: float
    late: bool = False


@dataclass(frozen=True)
class _Share:
    helper: int
    groups: tuple[int, ...]
    total: Words


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
        if manifest is not None and manifest.manifest != self._manifest:
            raise RunError(
                f"release {release} has other updates than it had: restore the directory as a whole"
            )
        self._started = self._heard = self._warned = now
        self._present: set[int] = set()
        self._checked: set[int] = set()
        self._silent: set[int] = set()
        # Why helpers are not asked again in this release.
        self._excluded: dict[int, str] = {}
        self._asked: list[AskedHelper] = []
        self._shares: list[_Share] = []
        # Once helpers are asked again: which of them answered for which group at first.
        self._first: dict[int, set[int]] | None = None

    @property
    def helpers(self) -> tuple[int, ...]:
        """The helpers whose shares are in the sum, by number."""
        return tuple(sorted({share.helper for share in self._shares}))

    @property
    def deadline(self) -> float:
        """When `tick` is to be called next, in seconds of the driver's clock."""
        due = [asked.since + self._times.timeout for asked in self._asked if not asked.late]
        give_up = [] if self._times.give_up is None else [self._started + self._times.give_up]
        return min([*due, *give_up, max(self._heard, self._warned) + WARN_EVERY])

    def begin(self, helpers: Iterable[int], now: float) -> list[Effect]:
        """Begin with the helpers that are there."""
        self._present |= set(helpers)
        return self._advance(now)

    def arrived(self, helper: int, now: float) -> list[Effect]:
        """A helper has connected, or connected again: requests to it before are lost."""
        self._forget(helper)
        self._present.add(helper)
        return self._advance(now)

    def departed(self, helper: int, now: float) -> list[Effect]:
        """A helper is gone; its groups go to others."""
        self._forget(helper)
        self._present.discard(helper)
        return self._advance(now)

    def answered(self, helper: int, answer: UnmaskShare | UnmaskRefused, now: float) -> list[Effect]:
        """A helper has answered; answers for another release, or without a request, are ignored."""
        if answer.release != self.release or self._over:
            return []
        if isinstance(answer, UnmaskRefused) and helper not in {asked.helper for asked in self._asked}:
            return []
        self._silent.discard(helper)
        self._heard = now
        effects: list[Effect] = []
        if isinstance(answer, UnmaskRefused):
            self._refused(helper, answer)
        elif not self._taken(helper, answer):
            self._exclude(helper, "has answered with another release or length")
            wrong = SecureRefusal.WRONG_SHARE.format(release=self.release, name=self._name(helper))
            effects = [WarnOperator(wrong)]
        return [*effects, *self._advance(now)]

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""
        for asked in self._asked:
            if now >= asked.since + self._times.timeout:
                asked.late = True
                self._silent.add(asked.helper)
        effects = self._advance(now)
        give_up = self._times.give_up
        if self._over:
            return effects
        if give_up is not None and now >= self._started + give_up:
            names = ", ".join(self._missing)
            self._fail(SecureRefusal.GIVEN_UP.format(release=self.release, seconds=give_up, names=names))
        elif now >= max(self._heard, self._warned) + WARN_EVERY:
            self._warned = now
            effects.append(WarnOperator(waits_for(self.release, self._missing, now - self._heard)))
        return effects

    def again(self, now: float) -> list[Effect] | None:
        """The sum cannot be right: ask the groups of other helpers, once.

        Returns:
            What is to be done; None if no other helper holds any group, or they were asked already.
        """
        answered = {group: {s.helper for s in self._shares if group in s.groups} for group in self._all}
        others = self._present - set(self._excluded)
        able = any(self._holders(group) & others - answered[group] for group in self._all)
        if self._first is not None or not able:
            return None
        self._first, self._shares, self.total = answered, [], None
        self.phase, self._started, self._heard = UnmaskingPhase.ASKING, now, now
        return self._advance(now)

    @property
    def _over(self) -> bool:
        return self.phase in (UnmaskingPhase.DONE, UnmaskingPhase.FAILED)

    @property
    def _all(self) -> range:
        return range(len(self.committee.groups))

    @property
    def _covered(self) -> set[int]:
        """The groups of which there is a share."""
        return {group for share in self._shares for group in share.groups}

    def _advance(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if not self._over and len(self.committee.helpers) - len(self._excluded) < self.committee.needed:
            told = "; ".join(f"helper {self._name(helper)} {why}" for helper, why in self._excluded.items())
            self._fail(SecureRefusal.FEW_ANSWERS.format(release=self.release, told=told))
        if self.phase is UnmaskingPhase.CHECKING:
            effects += self._check(now)
        if self.phase is UnmaskingPhase.ASKING:
            effects += self._ask(now)
        return effects

    def _check(self, now: float) -> list[Effect]:
        waiting = {asked.helper for asked in self._asked if not asked.late}
        known = self._checked | set(self._excluded) | {asked.helper for asked in self._asked}
        fresh = sorted(self._present - known)
        if not fresh and not waiting and len(self._checked & self._present) >= self.committee.needed:
            return self._commit()
        self._asked += [AskedHelper(helper, (), now) for helper in fresh]
        return [AskHelper(helper, self._request(helper, (), check=True)) for helper in fresh]

    def _commit(self) -> list[Effect]:
        """Fix the manifest, without the updates that are left out."""
        committee, release, left_out = self.committee, self.release, self.left_out
        self._asked = []
        self._leave_out(left_out)
        entries = bare_entries(self._entries)
        reason = committee.refusal(release, entries) or committee.weight_refusal(release, entries)
        if reason:
            names = ", ".join(sorted({name for names in self.complaints.values() for name in names}))
            text = SecureRefusal.LEFT_OUT.format(
                release=release, left_out=len(left_out), names=names, reason=reason
            )
            self._fail(text if left_out else reason)
            return []
        self._manifest = committee.manifest(release, entries)
        self.phase = UnmaskingPhase.ASKING
        return [CommitManifest(release, entries, left_out, self._manifest)]

    def _ask(self, now: float) -> list[Effect]:
        asked = {group for own in self._asked if not own.late for group in own.groups}
        shared_out: dict[int, list[int]] = {}
        for group in self._all:
            if group not in self._covered | asked and (helper := self._choose(group, shared_out)) is not None:
                shared_out.setdefault(helper, []).append(group)
        effects: list[Effect] = []
        for helper, groups in sorted(shared_out.items()):
            self._asked.append(AskedHelper(helper, tuple(groups), now))
            effects.append(AskHelper(helper, self._request(helper, tuple(groups))))
        if len(self._covered) == len(self._all):
            self._finish()
        return effects

    def _choose(self, group: int, shared_out: dict[int, list[int]]) -> int | None:
        """Choose the helper for a group: the least busy, of those asked already once they are T + 1."""
        able = self._holders(group) & self._present - set(self._excluded) - self._silent
        if self._first is not None and (others := able - self._first[group]):
            able = others
        if not able:
            return None
        busy = {helper: len(shared_out.get(helper, ())) for helper in able}
        for own in self._asked:
            if own.helper in busy:
                busy[own.helper] += len(own.groups)
        chosen = {*shared_out, *self.helpers, *(own.helper for own in self._asked)}
        if len(chosen) >= self.committee.needed and able & chosen:
            able &= chosen
        return min(able, key=lambda helper: (busy[helper], helper not in self._checked, helper))

    def _refused(self, helper: int, answer: UnmaskRefused) -> None:
        own = {entry.task for entry in self._entries}
        wrong = set(answer.tasks) & own
        if not answer.tasks:
            name = self._name(helper)
            reason = " ".join(answer.reason.split())[:LONGEST_REASON]
            self._fail(SecureRefusal.REFUSED.format(release=self.release, name=name, reason=reason))
        elif self.phase is UnmaskingPhase.CHECKING:
            self._forget(helper)
            self._checked.add(helper)
            self.left_out = tuple(sorted({*self.left_out, *wrong}))
            for task in wrong:
                self.complaints[task] = (*self.complaints.get(task, ()), self._name(helper))
        else:
            # The helper was not connected when the others checked.
            self._exclude(helper, "says that seeds do not decrypt, which it has not said before")

    def _taken(self, helper: int, share: UnmaskShare) -> bool:
        """Keep a share that was asked for and is still needed; False for one that cannot be right."""
        asked = [own for own in self._asked if (own.helper, own.groups) == (helper, share.groups)]
        if not asked:
            # The share answers what was asked before a reconnection, or in the check.
            return True
        self._asked.remove(asked[0])
        checking = self.phase is UnmaskingPhase.CHECKING
        length = 0 if checking else self.committee.parameters
        if share.manifest != self._manifest or len(share.total) != length:
            return False
        if checking:
            self._checked.add(helper)
            return True
        self.instances[helper] = share.instance
        if not self._covered & set(share.groups):
            self._shares.append(_Share(helper, share.groups, share.total))
        return True

    def _finish(self) -> None:
        """S: the weighted sum of masked vectors, less the helpers' sums of masks."""
        total = np.zeros(self.committee.parameters, np.uint32)
        for entry in self._entries:
            total += self._vector(entry.task) * np.uint32(entry.weight)
        for share in self._shares:
            total -= share.total
        self.total = total.view(np.int32).astype(np.int64)
        self.phase, self._asked = UnmaskingPhase.DONE, []

    def _fail(self, reason: str) -> None:
        self.phase, self.reason, self._asked = UnmaskingPhase.FAILED, reason, []

    def _forget(self, helper: int) -> None:
        """Withdraw the requests to a helper."""
        self._asked = [asked for asked in self._asked if asked.helper != helper]
        self._silent.discard(helper)

    def _exclude(self, helper: int, why: str) -> None:
        """A helper is not asked again in this release."""
        self._forget(helper)
        self._excluded[helper] = why
        self._checked.discard(helper)

    def _leave_out(self, tasks: Iterable[TaskId]) -> None:
        out = set(tasks)
        self._entries = tuple(entry for entry in self._entries if entry.task not in out)

    def _request(self, helper: int, groups: tuple[int, ...], check: bool = False) -> UnmaskRequest:
        entries = tuple(
            UnmaskEntry(entry.task, entry.client, entry.site, entry.weight, entry.boxes[helper])
            for entry in self._entries
        )
        return UnmaskRequest(self.release, self.committee.digest, groups, entries, check)

    def _holders(self, group: int) -> frozenset[int]:
        return self.committee.groups[group]

    def _name(self, helper: int) -> str:
        return self.committee.helpers[helper].name

    @property
    def _missing(self) -> list[str]:
        """Names of the helpers that could bring the release on."""
        if self.phase is UnmaskingPhase.CHECKING:
            wanted = set(range(len(self.committee.helpers))) - (self._checked & self._present)
        else:
            wanted = {h for group in self._all if group not in self._covered for h in self._holders(group)}
        return [self._name(helper) for helper in sorted(wanted - set(self._excluded))]


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
