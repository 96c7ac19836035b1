"""Unmasking by helpers that vote: the server's state machine for the sum of one release, sans-IO.

CHECKING: every helper that is there checks the release, and writes nothing. A helper finds that seeds of an
update do not open by the boxes of all holders of its groups, so either all honest holders of a group complain
of an update, or none of the committee does. An update of which a majority of a group's holders or more
complain is left out, and its site is to blame. Where no more helpers complain than may lie, it is they who
are. With neither (H − T even), who is to blame cannot be told, and the update is left out. Then the
manifest becomes durable, and never changes. VOTING: helpers sign it, until there is a quorum. ASKING: each
helper tells the digest of the sum of masks of each of its groups, and one holder of each group the sum. What
a majority of a group's holders says of it is true. DONE: the masks are taken off the weighted sum of masked
vectors.

A helper that is in the minority, or whose answer cannot be right, is at fault.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from offbeat.core.events import TaskId
from offbeat.core.privacy.sums import Integers
from offbeat.secure.committee import Committee
from offbeat.secure.effects import AskHelper, CommitManifest, Effect, MaskedEntry, WarnOperator
from offbeat.secure.helper import digest_of
from offbeat.secure.messages import UnmaskEntry, UnmaskRefused, UnmaskRequest, UnmaskShare, Words
from offbeat.secure.refusals import SecureRefusal
from offbeat.secure.unmasking import (
    LONGEST_REASON,
    WARN_EVERY,
    UnmaskingPhase,
    UnmaskingTimes,
    bare_entries,
    check_manifest,
    refusal,
    unmasked,
    waits_for,
)
from offbeat.secure.votes import is_vote

_CHECKING, _VOTING, _ASKING = UnmaskingPhase.CHECKING, UnmaskingPhase.VOTING, UnmaskingPhase.ASKING


@dataclass
class AskedHelper:
    """A request that a helper has not answered."""

    helper: int
    groups: tuple[int, ...]
    since: float
    late: bool = False


class VotedUnmasking:
    """The unmasking of one release by a committee that votes.

    Args:
        committee: The helpers and their bounds.
        release: Number of the release.
        entries: Its updates.
        vector: Gives the masked vector of a task, uint32 [L].
        now: Seconds of the driver's clock.
        times: How long it waits.
        manifest: What an earlier process made durable; None for a new release.
        slow: Helpers that were late in the release before: nobody waits for them if others can answer.

    Raises:
        RunError: The updates are not those of the manifest.

    Attributes:
        phase: Where it is.
        left_out: Tasks whose updates are not summed.
        complaints: Names of the helpers that complain of the seeds of a task, by task.
        at_fault: Why helpers are to blame, by their number.
        slow: Helpers that are late, in this release or the one before, and have told no sums since.
        total: S = Σ c̃ y, int64 [L], when it is done.
        reason: Why it failed.
        instances: The instance number of each helper that has voted or answered with a sum.
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
        slow: frozenset[int] = frozenset(),
    ) -> None:
        self.committee, self.release, self._vector, self._times = committee, release, vector, times
        self.phase = _CHECKING if manifest is None else _VOTING
        self.left_out: tuple[TaskId, ...] = () if manifest is None else manifest.left_out
        self.complaints: dict[TaskId, tuple[str, ...]] = {}
        self.at_fault: dict[int, str] = {}
        self.slow = set(slow)
        self.instances: dict[int, int] = {}
        self.total: Integers | None = None
        self.reason: str | None = None
        out = set(self.left_out)
        self._entries = tuple(sorted((e for e in entries if e.task not in out), key=lambda entry: entry.task))
        self._manifest = self._digest()
        check_manifest(manifest, release, self._manifest)
        self._started = self._heard = self._warned = now
        self._present: set[int] = set()
        self._asked: list[AskedHelper] = []
        # Why helpers are not asked again in this release.
        self._refused: dict[int, str] = {}
        # The tasks of which helpers complain.
        self._checked: dict[int, frozenset[TaskId]] = {}
        self._votes: dict[int, bytes] = {}
        # Helpers that lack the seeds of an update.
        self._unable: set[int] = set()
        self._sums: dict[int, dict[int, bytes]] = {}  # digests by helper and group
        # The sum of a group and the helper that gave it.
        self._bodies: dict[int, tuple[int, Words]] = {}

    # ---- what the driver sees ----

    @property
    def helpers(self) -> tuple[int, ...]:
        """The helpers that have given their sums, by number."""
        return tuple(sorted(self._sums))

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
        """A helper has disconnected; its requests go to others."""
        self._forget(helper)
        self._present.discard(helper)
        return self._advance(now)

    def answered(self, helper: int, answer: UnmaskShare | UnmaskRefused, now: float) -> list[Effect]:
        """A helper has answered; answers for another release, or without a request, are ignored."""
        if answer.release != self.release or self.phase.over or helper in self._refused:
            return []
        effects: list[Effect] = []
        if isinstance(answer, UnmaskRefused):
            if helper not in {asked.helper for asked in self._asked}:
                return []
            self._on_refusal(helper, answer)
        elif (wrong := self._on_share(helper, answer)) is not None:
            self._blame(helper, wrong)
            effects = [WarnOperator(f"release {self.release}: helper {self._name(helper)} {wrong}")]
        self._heard = now
        return [*effects, *self._advance(now)]

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""
        effects: list[Effect] = []
        for asked in self._asked:
            if not asked.late and now >= asked.since + self._times.timeout:
                asked.late = True
                effects += self._note_slow(asked.helper)
        effects += self._advance(now)
        give_up = self._times.give_up
        if self.phase.over:
            return effects
        if give_up is not None and now >= self._started + give_up:
            reason = SecureRefusal.GIVEN_UP.format(
                release=self.release, seconds=give_up, names=", ".join(map(self._name, self._missing))
            )
            self._fail(reason)
        elif now >= max(self._heard, self._warned) + WARN_EVERY:
            self._warned = now
            names = [self._name(helper) for helper in self._missing]
            effects.append(WarnOperator(waits_for(self.release, names, now - self._heard)))
        return effects

    def again(self, now: float) -> list[Effect] | None:
        """Ask no other helpers: the majority decides on the parts of the sum."""
        return None

    # ---- answers ----

    def _on_refusal(self, helper: int, answer: UnmaskRefused) -> None:
        wrong = frozenset(answer.tasks) & {entry.task for entry in self._entries}
        if not answer.tasks:
            self._blame(helper, f"refuses it ({' '.join(answer.reason.split())[:LONGEST_REASON]})")
        elif self.phase is _CHECKING:
            self._forget(helper)
            self._checked[helper] = wrong
        elif self.phase is _ASKING:
            self._forget(helper)
            self._unable.add(helper)

    def _on_share(self, helper: int, share: UnmaskShare) -> str | None:
        """Take an answer that was asked for; returns why it cannot be right, None if it can."""
        asked = [own for own in self._asked if (own.helper, own.groups) == (helper, share.groups)]
        kind = _VOTING if share.vote else _ASKING if share.sums else _CHECKING
        if not asked or kind is not self.phase:
            # The answer is to a question before a reconnection, or in an earlier phase.
            return None
        self._asked.remove(asked[0])
        if share.manifest != self._manifest:
            return "has answered with another release or length"
        if kind is _CHECKING:
            self._checked[helper] = frozenset()
            return None
        self.instances[helper] = max(share.instance, self.instances.get(helper, 0))
        return self._on_vote(helper, share.vote) if kind is _VOTING else self._on_sums(helper, share)

    def _on_vote(self, helper: int, vote: bytes) -> str | None:
        if not is_vote(self.committee, helper, self._manifest, vote):
            return "has answered with a vote that is not its own"
        self._votes[helper] = vote
        return None

    def _on_sums(self, helper: int, share: UnmaskShare) -> str | None:
        held = self.committee.held_by(helper)
        length = self.committee.parameters if share.groups else 0
        if len(share.sums) != len(held) or len(share.total) != length:
            return "has answered with another release or length"
        told = dict(zip(held, share.sums, strict=True))
        self.slow.discard(helper)
        if self._sums.setdefault(helper, told) != told:
            return "has told two sums of the same masks"
        for group in share.groups:
            if digest_of(share.total) != told[group]:
                return "has told a sum of masks that has not the digest it told"
            self._bodies.setdefault(group, (helper, share.total))
        return None

    # ---- phases ----

    def _advance(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if not self.phase.over and len(self._refused) > self.committee.tolerated:
            self._fail_refused()
        if self.phase is _CHECKING:
            effects += self._check(now)
        if self.phase is _VOTING:
            effects += self._vote(now)
        if self.phase is _ASKING:
            effects += self._ask(now)
        return effects

    def _check(self, now: float) -> list[Effect]:
        fresh = sorted(self._able - set(self._checked) - {asked.helper for asked in self._asked})
        waiting = any(not asked.late and asked.helper not in self.slow for asked in self._asked)
        complained = any(self._checked.values())
        if len(self._checked) >= self.committee.needed and not (
            complained and (set(fresh) - self.slow or waiting)
        ):
            return self._commit()
        self._asked += [AskedHelper(helper, (), now) for helper in fresh]
        return [AskHelper(helper, self._request(helper, check=True)) for helper in fresh]

    def _commit(self) -> list[Effect]:
        """Fix the manifest, without the updates that are left out."""
        self._judge_complaints()
        out = set(self.left_out)
        self._entries = tuple(entry for entry in self._entries if entry.task not in out)
        entries = bare_entries(self._entries)
        if reason := refusal(self.committee, self.release, entries, self.left_out, self.complaints):
            self._fail(reason)
            return []
        self._manifest, self._asked, self.phase = self._digest(), [], _VOTING
        return [CommitManifest(self.release, entries, self.left_out, self._manifest)]

    def _judge_complaints(self) -> None:
        out = []
        for task in sorted(frozenset[TaskId]().union(*self._checked.values())):
            complaining = [helper for helper, tasks in sorted(self._checked.items()) if task in tasks]
            self.complaints[task] = tuple(map(self._name, complaining))
            if len(complaining) <= self.committee.tolerated:
                for helper in complaining:
                    self.at_fault[helper] = SecureRefusal.REFUTED.value
            else:
                out.append(task)
        self.left_out = tuple(out)

    def _vote(self, now: float) -> list[Effect]:
        if len(self._votes) >= self.committee.needed:
            self._asked, self.phase = [], _ASKING
            return []
        fresh = sorted(self._able - set(self._votes) - {asked.helper for asked in self._asked})
        self._asked += [AskedHelper(helper, (), now) for helper in fresh]
        return [AskHelper(helper, self._request(helper)) for helper in fresh]

    def _ask(self, now: float) -> list[Effect]:
        self._drop_wrong_bodies()
        true = self._true_sums
        groups = range(len(self.committee.groups))
        if all(group in true and group in self._bodies for group in groups):
            self._finish(true)
            return []
        if (group := self._contradiction(true)) is not None:
            told = {helper for helper in self._sums if group in self._sums[helper]}
            names = ", ".join(self._name(h) for h in sorted(told | (self._unable & self._holders(group))))
            self._fail(SecureRefusal.CONTRADICTION.format(release=self.release, names=names))
            return []
        return self._share_out(now, true)

    def _share_out(self, now: float, true: dict[int, bytes]) -> list[Effect]:
        """Ask one holder of each group for its sum, and all others for digests."""
        wanted: list[tuple[int, tuple[int, ...]]] = []
        busy = Counter(share.helper for share in self._asked)
        under_way = {group for share in self._asked if not share.late for group in share.groups}
        late = {(share.helper, group) for share in self._asked for group in share.groups if share.late}
        for group in range(len(self.committee.groups)):
            able = {
                helper
                for helper in self._holders(group) & self._able - self._unable
                if (helper, group) not in late
                and (group not in true or self._sums.get(helper, true)[group] == true[group])
            }
            if group in self._bodies or group in under_way or not able:
                continue
            # Fast helpers are asked first.
            helper = min(able, key=lambda h: (h in self.slow, h not in self._votes, busy[h], h))
            busy[helper] += 1
            wanted.append((helper, (group,)))
        told = {share.helper for share in self._asked} | {helper for helper, _ in wanted} | set(self._sums)
        wanted += [(helper, ()) for helper in sorted(self._able - self._unable - told)]
        self._asked += [AskedHelper(helper, groups, now) for helper, groups in wanted]
        return [AskHelper(helper, self._request(helper, groups)) for helper, groups in wanted]

    @property
    def _true_sums(self) -> dict[int, bytes]:
        """Digest of a group's sum that a majority of its holders gives, for the groups that have one."""
        true = {}
        for group in range(len(self.committee.groups)):
            told = Counter(own[group] for own in self._sums.values() if group in own)
            for digest, count in told.items():
                if count >= self.committee.majority:
                    true[group] = digest
        return true

    def _drop_wrong_bodies(self) -> None:
        """Forget sums that a majority contradicts: another holder is asked."""
        true = self._true_sums
        for group, (helper, _) in list(self._bodies.items()):
            if (
                helper in self._refused
                or true.get(group, self._sums[helper][group]) != self._sums[helper][group]
            ):
                del self._bodies[group]

    def _contradiction(self, true: dict[int, bytes]) -> int | None:
        """A group that cannot have a majority any more; None if all can."""
        for group in range(len(self.committee.groups)):
            told = Counter(own[group] for own in self._sums.values() if group in own)
            open_ = self._holders(group) - set(self._sums) - set(self._refused) - self._unable
            if group not in true and max(told.values(), default=0) + len(open_) < self.committee.majority:
                return group
        return None

    def _finish(self, true: dict[int, bytes]) -> None:
        """S: the weighted sum of masked vectors, less the sums of masks."""
        for helper, told in self._sums.items():
            if any(digest != true[group] for group, digest in told.items()):
                self._blame(helper, "has told another sum of masks than the other holders of their seeds")
        for helper, why in self._refused.items():
            self.at_fault.setdefault(helper, why)
        for helper in self._unable:
            self.at_fault.setdefault(helper, SecureRefusal.REFUTED.value)
        masks = (sums for _, sums in self._bodies.values())
        masked = ((self._vector(entry.task), entry.weight) for entry in self._entries)
        self.total = unmasked(self.committee.parameters, masked, masks)
        self.phase, self._asked = UnmaskingPhase.DONE, []

    # ---- parts ----

    def _fail(self, reason: str) -> None:
        self.phase, self.reason, self._asked = UnmaskingPhase.FAILED, reason, []

    def _fail_refused(self) -> None:
        """Fail and name all refusing helpers: more refuse than may, so it is not known who is right."""
        told = "; ".join(f"helper {self._name(helper)} {why}" for helper, why in self._refused.items())
        self._fail(SecureRefusal.NOT_VOTED.format(release=self.release, told=told))

    def _blame(self, helper: int, why: str) -> None:
        """A helper is not asked again in this release; if it has voted, its vote counts all the same."""
        self._forget(helper)
        self._refused[helper] = why
        self._checked.pop(helper, None)

    def _note_slow(self, helper: int) -> list[Effect]:
        if helper in self.slow:
            return []
        self.slow.add(helper)
        text = SecureRefusal.SLOW.format(
            release=self.release, name=self._name(helper), seconds=self._times.timeout
        )
        return [WarnOperator(text)]

    def _forget(self, helper: int) -> None:
        """Withdraw the requests to a helper."""
        self._asked = [asked for asked in self._asked if asked.helper != helper]

    @property
    def _able(self) -> set[int]:
        return self._present - set(self._refused)

    def _digest(self) -> bytes:
        boxes = {entry.task: b"".join(entry.boxes) for entry in self._entries}
        return self.committee.voted_manifest(self.release, bare_entries(self._entries), boxes)

    def _request(self, helper: int, groups: tuple[int, ...] = (), check: bool = False) -> UnmaskRequest:
        entries = tuple(
            UnmaskEntry(entry.task, entry.client, entry.site, entry.weight, b"".join(entry.boxes))
            for entry in self._entries
        )
        numbers = range(len(self.committee.helpers))
        votes = tuple(self._votes.get(h, b"") for h in numbers) if self.phase is _ASKING else ()
        return UnmaskRequest(self.release, self.committee.digest, groups, entries, check, votes)

    def _holders(self, group: int) -> frozenset[int]:
        return self.committee.groups[group]

    def _name(self, helper: int) -> str:
        return self.committee.helpers[helper].name

    @property
    def _missing(self) -> list[int]:
        """The helpers that could bring the release on."""
        done = {_CHECKING: set(self._checked), _VOTING: set(self._votes), _ASKING: set(self._sums)}
        everybody = set(range(len(self.committee.helpers)))
        return sorted(everybody - done[self.phase] - set(self._refused) - self._unable)
