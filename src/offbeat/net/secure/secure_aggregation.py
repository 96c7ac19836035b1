"""The helpers of a secure run at its server, and the release that they unmask.

Sans-IO, as the coordinator around it. What is decided here is in the journal before anybody hears of it: the
committee, which updates a release has, how it ended. So after a crash all of it follows from the journal, and
a release goes on where it was: it is checked again, or its helpers are asked again, or its sum is there.
"""

import logging
import os
from array import array
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from math import inf
from typing import TypeVar

from msgspec.structs import replace

from offbeat.core.commands import Aggregate
from offbeat.core.errors import RunError, UsageError
from offbeat.core.events import (
    Arrived,
    ClientId,
    CommitteeFormed,
    Event,
    Left,
    Released,
    Releasing,
    TaskId,
    Version,
)
from offbeat.core.privacy.releases import AwaitedSums, ReleasePlan
from offbeat.core.privacy.sums import Integers
from offbeat.net.messages import FromSite, Leave, Register, Registered, Rejected, RunFinished
from offbeat.net.monitor.snapshot import HelpersView
from offbeat.net.secure.helpers import Helpers, NoHelpers, ServedRun
from offbeat.net.secure.masked_updates import MaskedUpdateCheck, unpack
from offbeat.net.secure.release_evidence import ReleaseEvidence
from offbeat.net.secure.release_seeds import ReleaseSum
from offbeat.net.server.effects import Measurements
from offbeat.net.server.options import ServerOptions
from offbeat.net.server.site_registry import SiteRecord
from offbeat.net.server.validation import InvalidUpdateError, UpdateCheck
from offbeat.secure.committee import VOTES, Committee, CommitteeMember, rule_of
from offbeat.secure.effects import AskHelper, CommitManifest, Effect, MaskedEntry
from offbeat.secure.invalid_sums import invalid_sum
from offbeat.secure.messages import UnmaskRefused, UnmaskShare
from offbeat.secure.refusals import SecureRefusal
from offbeat.secure.unmasking import Unmasking, UnmaskingPhase, UnmaskingTimes, check_instance
from offbeat.secure.voted_unmasking import VotedUnmasking

log = logging.getLogger(__name__)
T = TypeVar("T")
AnyUnmasking = Unmasking | VotedUnmasking
RUN_BYTES = 32
_NOBODY = -1  # the client of a task whose update has not arrived


class SecureAggregation:
    """The committee of a run, its connected helpers, and the release that is being unmasked.

    Args:
        run: The run: it applies the events, and sends the messages.
        plan: What is fixed for the releases of the run.
        times: How long an unmasking waits.
        new_helpers: Names of the helpers of a new committee, in place of the recorded one; None means that
            the recorded one goes on.
        draw: Draws so many bytes.

    Attributes:
        committee: The committee; None before there is one.
        recorded: Sums that an earlier process made durable, by version.
        connected: Names of the helpers that are there.
        evidence: What releases have shown of helpers and sites.
    """

    def __init__(
        self,
        run: ServedRun,
        plan: ReleasePlan,
        times: UnmaskingTimes,
        new_helpers: tuple[str, ...] | None = None,
        draw: Callable[[int], bytes] = os.urandom,
    ) -> None:
        release = run.tensors.release
        assert plan.privacy.secure is not None
        assert isinstance(release, AwaitedSums)
        self._run, self._plan, self._times, self._draw, self._sums = run, plan, times, draw, release
        self._replaces, self._forming = new_helpers is not None, True
        self.names = new_helpers or plan.privacy.secure.helpers
        self.committee: Committee | None = None
        self.recorded: Mapping[Version, ReleaseSum] = {}
        self.connected: set[str] = set()
        self.evidence = ReleaseEvidence(plan.privacy.fewest)
        # The client of each task whose update has arrived: four bytes a task.
        self._owners = array("i")
        self._slow: frozenset[str] = frozenset()  # helpers that were late in the last release
        self._unheard: Measurements = []  # evaluations that are recorded once sites are heard again
        self._untold: dict[ClientId, str] = {}  # what a site is told when it is there
        self._keys: dict[
            str, tuple[bytes, bytes]
        ] = {}  # by which the helpers of the next committee have registered
        self._instances: dict[str, int] = {}  # the largest that were seen
        self._gone: set[str] = set()  # helpers of the committee that cannot help any more
        self._manifest: Releasing | None = None  # of the release at hand
        self._unmasking: AnyUnmasking | None = None
        # When the release at hand began, in seconds of the run's clock.
        self._began = 0.0

    # ---- state ----

    @property
    def ready(self) -> bool:
        """Whether there is a committee, and no other one is being formed."""
        return self.committee is not None and not self._forming

    @property
    def busy(self) -> bool:
        """Whether sites are not heard: a release waits for its sum, or tasks for their new committee."""
        return bool(self._sums.waiting) or (self._run.server.begun and not self.ready)

    @property
    def status(self) -> str:
        """The helpers and the state of the release, in one line."""
        line = f"helpers: {', '.join(map(self._standing, self.names))}"
        if not self.ready:
            return f"{line}; the committee is formed when all are there"
        return line if self.waiting is None else f"{line}; release {self.waiting} waits for them"

    def _standing(self, name: str) -> str:
        if name in self.evidence.out:
            return f"{name} (out)"
        return name if name in self.connected else f"{name} (away)"

    @property
    def rule(self) -> int:
        """The rule of the committee, or of the one that is to be formed."""
        if self.committee is not None and not self._forming:
            return self.committee.rule
        assert self._plan.privacy.secure is not None
        return rule_of(len(self.names), self._plan.privacy.secure.most_colluding)

    @property
    def waiting(self) -> Version | None:
        """The release that waits for its sum; None means that none does."""
        return self._release.version if self._sums.waiting else None

    @property
    def view(self) -> HelpersView:
        """How the helpers are shown."""
        return HelpersView(self.status, len(self.connected), self.waiting)

    def enter_event(self, event: Event) -> None:
        """Follow the journal, also while it is repeated."""
        match event:
            case CommitteeFormed():
                self.committee, self._forming = self._committee(event), False
                if not self._replaces:
                    self.names = tuple(name for name, _ in event.helpers)
                self._instances.clear()
                self._gone.clear()
                self.evidence.new_committee()
                self._slow = frozenset()
            case Releasing():
                self._manifest = event
            case Arrived():
                self._own(event)
            case Left():
                self.evidence.left(self._present)
            case Released():
                assert self.committee is not None
                summed = () if self._manifest is None else self._manifest.tasks
                self.evidence.note(event, summed, self._owners, self._present, self.committee)
                self._manifest = None
                for name, instance in event.instances.items():
                    self._instances[name] = max(instance, self._instances.get(name, 0))

    def _own(self, event: Arrived) -> None:
        """Note the client of an update."""
        self._owners.extend(repeat(_NOBODY, event.task + 1 - len(self._owners)))
        self._owners[event.task] = event.client

    @property
    def _present(self) -> set[ClientId]:
        return {site.client for site in self._run.registry.sites.values() if site.present}

    def site_refusal(self, client: ClientId) -> Rejected | None:
        """Why a site may not register, for now or for good; None if it may."""
        if client in self.evidence.sent_away:
            return Rejected(self.evidence.sent_away[client])
        if client in self.evidence.aside:
            return Rejected(SecureRefusal.ASIDE.value, final=False)
        return None

    def check_site(self, name: str, register: Register) -> None:
        """Raises `InvalidUpdateError` for a helper of no run, and for a site that knows no secure run."""
        if register.public_key:
            helpers = ", ".join(self.names)
            raise InvalidUpdateError(SecureRefusal.NOT_A_HELPER.format(name=name, helpers=helpers), "helper")
        if not (register.secure and register.rule >= self.rule):
            raise InvalidUpdateError(SecureRefusal.NOT_SECURE, "secure")

    def update_check(self, check: UpdateCheck) -> UpdateCheck:
        """The check of masked updates."""
        return MaskedUpdateCheck(self._run, self._formed, check.samples_unit)

    def _formed(self) -> Committee:
        assert self.committee is not None
        return self.committee

    def registered(self, name: str, message: Registered) -> Registered:
        """The answer to a registration, with the present names of the helpers."""
        privacy = message.plan["privacy"]
        secure = {**privacy["secure"], "helpers": list(self.names)}
        return replace(message, plan={**message.plan, "privacy": {**privacy, "secure": secure}}, site=name)

    def greet(self, site: SiteRecord) -> None:
        """Tell a connected site who the helpers are, and the fate of its update."""
        if self.ready:
            assert self.committee is not None
            self._run.send(site.name, self.committee)
        self._tell_site(site.client)

    def _tell_site(self, client: ClientId) -> None:
        """Tell a reconnected site the fate of its update."""
        if (text := self._untold.pop(client, None)) is not None:
            self._run.send(self._run.registry.by_client[client].name, Rejected(text, final=False))

    def remember(self, sums: Mapping[Version, ReleaseSum]) -> None:
        """Have the sums that an earlier process made durable, and no others."""
        self.recorded = sums

    def recall(self, event: Event) -> None:
        """Have the sum of a release ready that is about to be repeated. Raises `RunError` without it."""
        if isinstance(event, Released) and not event.reason:
            self._sums.sums[event.version] = self._recorded_sum(event)

    def recovered(self) -> None:
        """The journal has been repeated: is another committee asked for?"""
        if self.committee is not None:
            self._forming = self.names != tuple(helper.name for helper in self.committee.helpers)

    def check_snapshots(self) -> None:
        """Raises `TypeError`: the committee, and what releases have shown of helpers, are in the journal."""
        raise TypeError("with secure aggregation, what is known of helpers follows from the journal")

    def _recorded_sum(self, event: Released) -> Integers:
        record = self.recorded.get(event.version)
        if record is None or record.tasks != self._release.tasks:
            what = "is not there" if record is None else "is of other updates"
            raise RunError(
                f"release {event.version} cannot be made again: its sum in secrets.db {what}: "
                "restore the directory as a whole, or begin a new run"
            )
        return record.total

    def _committee(self, event: CommitteeFormed) -> Committee:
        privacy = self._plan.privacy
        assert privacy.secure is not None
        assert privacy.most is not None
        assert privacy.clip is not None
        verify = event.verify_keys or ("",) * len(event.helpers)
        members = tuple(
            CommitteeMember(name, bytes.fromhex(key), bytes.fromhex(other))
            for (name, key), other in zip(event.helpers, verify, strict=True)
        )
        return Committee(
            run=bytes.fromhex(event.run), epoch=event.epoch, helpers=members,
            colluding=privacy.secure.most_colluding, least=privacy.fewest,
            colluding_clients=privacy.colluding_clients, most=privacy.most, dominance=privacy.dominance,
            weight_bits=privacy.bits, parameters=self._plan.parameters, clip=privacy.clip, rule=event.rule,
        )  # fmt: skip

    # ---- what a release holds up ----

    def settle(self, now: float, event: Event, settled: Callable[[], object]) -> None:
        """Call `settled` if an event has been carried out; else begin with the release that waits."""
        if not self._sums.waiting:
            settled()
        elif not isinstance(event, Released):
            # `_finish` begins with the next release.
            self._begin(now)

    def unless_waiting(
        self, action: Callable[[], object], instead: Callable[[], object] = lambda: None
    ) -> None:
        """Do something, but not while a release waits for its sum: then do something else."""
        if self._sums.waiting:
            instead()
        else:
            action()

    def when_ready(self, action: Callable[[], object]) -> None:
        """Do something, but not before the committee is there."""
        if self.ready:
            action()

    def while_heard(self, steps: Iterable[object]) -> None:
        """Take steps until one of them has a release wait, after which no site is heard."""
        if self.busy:
            return
        for _ in steps:
            if self.busy:
                return

    def postpones(self, name: str) -> bool:
        """Whether messages of a site are to be passed later."""
        return self.busy and name not in self.names

    def measured(self, measurements: Measurements) -> Measurements:
        """The evaluations to record now: none while sites are not heard, unless the run is over."""
        self._unheard += measurements
        if self.busy and self._run.stopped is None:
            return []
        heard, self._unheard = self._unheard, []
        return heard

    # ---- helpers ----

    def choose(self, name: str, *, helper: T, site: T) -> T:
        """The value for a helper or the value for a site: whichever of them has this name."""
        return helper if name in self.names else site

    def receive(self, now: float, name: str, message: FromSite, registered: Registered) -> None:
        """Process a message of a helper.

        Args:
            now: When it came, in seconds of the run's clock.
            name: The helper's name.
            message: The message.
            registered: What a helper is told that registers.
        """
        if self._run.stopped is not None:
            self._run.send(name, RunFinished(self._run.stopped))
        elif isinstance(message, Register):
            self._register(now, name, message, registered)
        elif name not in self.connected:
            self._run.send(name, Rejected("this helper is not registered: register first", final=False))
            self._run.close(name, "the helper is not registered")
        elif isinstance(message, Leave):
            log.warning("helper left", extra={"helper": name, "reason": message.reason})
            self._run.close(name, "the helper has left")
            self.disconnected(now, name)
        elif isinstance(message, UnmaskShare | UnmaskRefused):
            self._tell(name, lambda unmasking, number: unmasking.answered(number, message, now), now)

    def disconnected(self, now: float, name: str) -> None:
        """A helper's connection has ended."""
        self.connected.discard(name)
        self._tell(name, lambda unmasking, number: unmasking.departed(number, now), now)

    def _tell(self, name: str, what: Callable[[AnyUnmasking, int], list[Effect]], now: float) -> None:
        """Tell the unmasking something of a helper, if there is one and it is the helper's."""
        if self._unmasking is not None and (number := self._number(name)) is not None:
            self._follow(now, what(self._unmasking, number))

    def _register(self, now: float, name: str, register: Register, registered: Registered) -> None:
        if (reason := self._refusal(name, register)) is not None:
            log.error("helper refused", extra={"helper": name, "reason": reason})
            self._run.send(name, Rejected(reason))
            self._run.close(name, reason)
            self._warn_if_too_few()
            return
        self.connected.add(name)
        self._keys[name] = register.public_key, register.verify_key
        self._run.send(name, registered)
        if self.ready:
            assert self.committee is not None
            self._run.send(name, self.committee)
            self._tell(name, lambda unmasking, number: unmasking.arrived(number, now), now)
        elif self.connected >= set(self.names):
            self._form(now)

    def _refusal(self, name: str, register: Register) -> str | None:
        """Why a helper may not help; None if it may."""
        if len(register.public_key) != RUN_BYTES:
            return SecureRefusal.NOT_A_SITE.format(name=name)
        if self.ready and name in self.evidence.out:
            return self.evidence.out[name]
        if self.rule >= VOTES and (register.rule < VOTES or len(register.verify_key) != RUN_BYTES):
            return SecureRefusal.NO_VOTES.format(name=name)
        own = None if self.committee is None else {h.name: h.public_key for h in self.committee.helpers}
        if own is not None and self.ready:
            if own[name] == register.public_key:
                try:
                    check_instance(name, self._instances.get(name, 0), register.instance)
                except UsageError as error:
                    self._gone.add(name)
                    return str(error)
                self._gone.discard(name)
                return None
            if register.committee:
                # The helper belongs to a committee that this one has replaced.
                return SecureRefusal.COMMITTED.format(name=name)
            if not self._replaces:
                self._gone.add(name)
                return SecureRefusal.OWN_KEY.format(name=name)
            self._forming = True
            # The other helpers serve the committee that is to be replaced.
            for other in list(self.connected):
                self._run.close(other, "a new committee is being formed")
            self.connected.clear()
        if register.committee:
            return SecureRefusal.COMMITTED.format(name=name)
        others = {
            self._keys[other][0]: other for other in self.names if other in self._keys and other != name
        }
        if register.public_key in others:
            return SecureRefusal.SAME_KEY.format(name=name, other=others[register.public_key])
        return None

    def _warn_if_too_few(self) -> None:
        """Tell the operator that no release can be made any more."""
        if self.committee is None or not (self._gone or self.evidence.out):
            return
        left = len(self.committee.helpers) - len(self._gone | set(self.evidence.out))
        needed = self.committee.needed
        if left < needed:
            reason = SecureRefusal.FEW_HELPERS.format(left=left, needed=needed)
            log.error("too few helpers", extra={"reason": reason})
        elif left == needed:
            log.warning("no helper may fail", extra={"reason": SecureRefusal.FEWEST_LEFT.format(
                left=left, needed=needed
            )})  # fmt: skip

    def _form(self, now: float) -> None:
        """Form the committee: all its helpers are there."""
        before = self.committee
        run = self._draw(RUN_BYTES) if before is None else before.run
        self.fail(now, SecureRefusal.OTHER_HELPERS)
        keys = tuple((name, self._keys[name][0].hex()) for name in self.names)
        verify = tuple(self._keys[name][1].hex() for name in self.names)
        epoch, rule = 1 if before is None else before.epoch + 1, self.rule
        self._run.apply(now, CommitteeFormed(epoch, run.hex(), keys, rule, verify if all(verify) else ()))
        # A server's process replaces its committee once.
        self._replaces = False
        assert self.committee is not None
        if before is None:
            log.info("guards against bad updates see sums only")
        sites = self._run.registry.sites.values()
        log.info("committee formed", extra={"epoch": epoch, "helpers": ", ".join(self.names)})
        for name in (*self.names, *(site.name for site in sites if site.connected)):
            self._run.send(name, self.committee)

    def _number(self, name: str) -> int | None:
        """A helper's number in the committee, None while it is not in it."""
        assert self.committee is not None
        names = [helper.name for helper in self.committee.helpers]
        return names.index(name) if name in names else None

    # ---- a release ----

    def tick(self, now: float) -> None:
        """Let time pass."""
        self._part_with_sites(now)
        if self._unmasking is not None:
            self._follow(now, self._unmasking.tick(now))
        elif self._sums.waiting and self.ready:
            self._begin(now)

    def next_due(self, sites: Callable[[], float]) -> float:
        """When `tick` is to be called next, in seconds of the run's clock.

        Args:
            sites: Says when something of the sites is due, while they are heard.
        """
        if not self.busy:
            return sites()
        if self._unmasking is not None:
            return self._unmasking.deadline
        return 0.0 if self._sums.waiting and self.ready else inf

    def _begin(self, now: float) -> None:
        """Begin the unmasking of the release that waits, or go on with it after a restart."""
        if not self.ready or self._unmasking is not None:
            return
        command, manifest, committee = self._release, self._manifest, self.committee
        assert committee is not None
        held, sites = self._run.tensors.updates, self._run.registry.by_client
        found = self.recorded.get(command.version)
        if found is not None and found.tasks == command.tasks and manifest is not None:
            self._finish(now, "", found.total)
            return
        weights = dict(zip(command.tasks, command.note["weights"], strict=True))
        clients = dict(zip(command.tasks, command.clients, strict=True))
        unpacked = {task: unpack(held[task].delta, committee) for task in command.tasks if task in held}
        entries = [
            MaskedEntry(task, clients[task], sites[clients[task]].name, weights[task], boxes)
            for task, (_, boxes) in unpacked.items()
        ]
        fixed = None
        if manifest is not None:
            own = [(task, clients[task], weights[task]) for task in manifest.tasks]
            digest = bytes.fromhex(manifest.manifest)
            fixed = CommitManifest(command.version, tuple(own), manifest.left_out, digest)
        begun = committee, command.version, entries, lambda task: unpacked[task][0], now, self._times, fixed
        if committee.votes:
            slow = [self._number(name) for name in self._slow]
            self._unmasking = VotedUnmasking(*begun, frozenset(n for n in slow if n is not None))
        else:
            self._unmasking = Unmasking(*begun)
        there = self.connected - set(self.evidence.out)
        self._began, numbers = now, [self._number(name) for name in there]
        self._follow(now, self._unmasking.begin([n for n in numbers if n is not None], now))

    def fail(self, now: float, reason: str) -> None:
        """Give up the releases that wait.

        Args:
            now: The time, in seconds of the run's clock.
            reason: Why, with the release's number in braces.
        """
        self._unmasking = None
        while self._sums.waiting:
            self._finish(now, reason.replace("{release}", str(self._release.version)), goes_on=False)

    def if_it_may_go_on(self, last: T) -> T | None:
        """None: the secrets of a run end with the run."""
        return None

    @property
    def _release(self) -> Aggregate:
        command = self._sums.waiting[0]
        assert isinstance(command, Aggregate)
        return command

    def _follow(self, now: float, effects: list[Effect]) -> None:
        """Carry out the effects of an unmasking."""
        unmasking = self._unmasking
        assert unmasking is not None
        for effect in effects:
            match effect:
                case AskHelper():
                    self._run.send(unmasking.committee.helpers[effect.helper].name, effect.request)
                case CommitManifest():
                    self._commit(now, effect)
                case _:
                    log.warning("release waits", extra={"reason": effect.text})
        if unmasking.phase is UnmaskingPhase.DONE:
            self._check_sum(now, unmasking)
        elif unmasking.phase is UnmaskingPhase.FAILED:
            self._finish(now, unmasking.reason or "")

    def _commit(self, now: float, effect: CommitManifest) -> None:
        tasks, weights = [task for task, _, _ in effect.entries], [weight for _, _, weight in effect.entries]
        self._run.note(
            now,
            Releasing(effect.release, tuple(tasks), tuple(weights), effect.left_out, effect.manifest.hex()),
        )

    def _check_sum(self, now: float, unmasking: AnyUnmasking) -> None:
        """Use a sum, unless it cannot be that of clipped updates."""
        manifest = self._manifest
        assert manifest is not None
        assert unmasking.total is not None
        plan, noised = self._plan, self._sums.noised(self._release, unmasking.total)
        reason = invalid_sum(plan.grid, unmasking.release, manifest.weights, noised, plan.deviation)
        if reason is not None and (effects := unmasking.again(now)) is not None:
            log.warning("asking others", extra={"reason": reason})
            self._follow(now, effects)
            return
        self._finish(now, reason or "", unmasking.total, invalid=reason is not None)

    def _finish(
        self,
        now: float,
        reason: str,
        total: Integers | None = None,
        *,
        goes_on: bool = True,
        invalid: bool = False,
    ) -> None:
        """End a release: its sum is known, or it has failed. With `goes_on` the next one begins."""
        unmasking, self._unmasking, command = self._unmasking, None, self._release
        left_out = () if self._manifest is None else self._manifest.left_out
        helpers: tuple[str, ...] = ()
        instances: dict[str, int] = {}
        seconds, at_fault, complaints = 0.0, dict[str, str](), dict[TaskId, tuple[str, ...]]()
        if unmasking is not None:
            names = [helper.name for helper in unmasking.committee.helpers]
            helpers = tuple(names[number] for number in unmasking.helpers)
            instances = {names[number]: own for number, own in sorted(unmasking.instances.items())}
            seconds, left_out = now - self._began, unmasking.left_out
            complaints = unmasking.complaints
            if isinstance(unmasking, VotedUnmasking):
                self._slow = frozenset(names[number] for number in unmasking.slow)
            at_fault = {names[number]: why for number, why in sorted(unmasking.at_fault.items())}
        if not reason:
            assert total is not None
            self._sums.sums[command.version] = total
            if command.version not in self.recorded:
                self._run.effects.sums.append(ReleaseSum(command.version, command.tasks, total))
        event = Released(
            command.version, reason, left_out, helpers, instances, seconds,
            tuple(sorted(complaints.items())), at_fault, invalid,
        )  # fmt: skip
        before = set(self.evidence.out), list(self.evidence.aside)
        self._run.apply(now, event)
        self._tell_left_out(command.version, left_out, complaints)
        self._part_with_helpers(now, at_fault, before[0])
        if invalid and list(self.evidence.aside) == before[1]:
            told = {"release": command.version, "reason": self._who_spoils}
            log.warning("who spoils sums cannot be told yet", extra=told)
        self._part_with_sites(now)
        if goes_on and self._sums.waiting:
            self._begin(now)

    # ---- helpers and sites that are to blame ----

    @property
    def _who_spoils(self) -> str:
        """The clients that may have spoiled a sum, in words."""
        if self.committee is not None and self.committee.votes:
            return "one of the sites"
        return f"one of the sites or of the helpers {', '.join(self.names)}"

    def _tell_left_out(
        self, release: Version, left_out: tuple[TaskId, ...], complaints: Mapping[TaskId, tuple[str, ...]]
    ) -> None:
        """Tell sites, and the operator, whose updates are left out, and which helpers say why."""
        registry = self._run.registry
        for task in left_out:
            client = self._owners[task]
            site, helpers = registry.by_client[client], ", ".join(complaints.get(task, ("its helpers",)))
            reason = SecureRefusal.LEFT_OUT_TOLD.format(task=task, release=release, names=helpers)
            told = {"site": site.name, "task": task, "helpers": helpers, "reason": reason}
            log.warning("update left out", extra=told)
            self._untold[client] = reason
            if site.connected:
                self._tell_site(client)

    def _part_with_helpers(self, now: float, at_fault: Mapping[str, str], before: set[str]) -> None:
        """Tell the operator which helpers are to blame, and those that are out that they are."""
        for name, reason in at_fault.items():
            log.warning("helper in the minority", extra={"helper": name, "reason": f"it {reason}"})
        for name in sorted(set(self.evidence.out) - before):
            log.error("helper out", extra={"helper": name, "reason": self.evidence.out[name]})
            if name in self.connected:
                self._run.send(name, Rejected(self.evidence.out[name]))
                self._run.close(name, self.evidence.out[name])
                self.disconnected(now, name)
            self._warn_if_too_few()

    def _part_with_sites(self, now: float) -> None:
        """Sites that are put aside or sent away leave, once no release waits."""
        run = self._run
        for site in list(run.registry.sites.values()):
            if self._sums.waiting or run.ending is not None or not run.server.begun:
                return
            refusal = self.site_refusal(site.client) if site.present else None
            if refusal is not None:
                what = "site sent away" if refusal.final else "site put aside"
                log.warning(what, extra={"site": site.name, "reason": refusal.reason})
                run.send(site.name, refusal)
                run.disconnect(site, refusal.reason)
                run.apply(now, Left(site.client, reason=refusal.reason))


def helpers_of(plan: ReleasePlan | None, options: ServerOptions) -> Callable[[ServedRun], Helpers]:
    """Makes the helpers of a run for its driver: those of its committee, or none.

    Args:
        plan: What is fixed for the releases of the run. None means that there are none.
        options: The server's options.
    """
    if plan is None or plan.privacy.secure is None:
        return lambda _: NoHelpers()
    return lambda run: SecureAggregation(run, plan, options.unmasking, options.helpers)
