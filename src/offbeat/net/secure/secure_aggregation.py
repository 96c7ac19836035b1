"""The helpers of a secure run at its server, and the release that they unmask.

Sans-IO, as the coordinator around it. What is decided here is in the journal before anybody hears of it: the
committee, which updates a release has, how it ended. So after a crash all of it follows from the journal, and
a release goes on where it was: it is checked again, or its helpers are asked again, or its sum is there.
"""

import logging
from array import array
from collections.abc import Callable, Collection, Mapping
from itertools import repeat
from math import inf

from msgspec.structs import replace

from offbeat.core.commands import Aggregate
from offbeat.core.errors import RunError
from offbeat.core.events import (
    UPDATES_GONE,
    Arrived,
    ClientId,
    CommitteeFormed,
    Event,
    Left,
    Released,
    Releasing,
    TaskId,
    Version,
    is_given_up,
)
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.core.privacy.releases import AwaitedSums
from offbeat.core.privacy.sums import Integers
from offbeat.net.messages import FromSite, Heartbeat, Leave, Register, Registered, Rejected, RunFinished
from offbeat.net.monitor.snapshot import HelpersView
from offbeat.net.secure.helper_committee import HelperCommittee
from offbeat.net.secure.masked_updates import unpack
from offbeat.net.secure.release_evidence import ReleaseEvidence
from offbeat.net.secure.release_seeds import ReleaseSum
from offbeat.net.secure.served_run import ServedRun
from offbeat.net.server.server_options import ServerOptions
from offbeat.net.server.site_registry import SiteRecord
from offbeat.secure.committee import Committee
from offbeat.secure.effects import AskHelper, CommitManifest, Effect, MaskedEntry
from offbeat.secure.invalid_sums import invalid_sum
from offbeat.secure.messages import UnmaskRefused, UnmaskShare
from offbeat.secure.refusals import SecureRefusal
from offbeat.secure.unmasking import Unmasking, UnmaskingPhase
from offbeat.secure.voted_unmasking import VotedUnmasking

log = logging.getLogger(__name__)
AnyUnmasking = Unmasking | VotedUnmasking
_NOBODY = -1  # the client of a task whose update has not arrived
FAILURES = 3
"""Releases in a row that may fail: the next one waits as for an absent helper."""
SEARCHED = 32
"""As many may fail while the server searches for the sites that spoil sums, with some of them put aside."""
ASK_AGAIN = 60.0
"""Seconds after which the helpers of a release that waits so are asked again."""
SILENCE = 2 / 3
"""Part of a lease after which a connected helper is silent: it has missed two of three heartbeats."""


class SecureAggregation:
    """The releases of a run that its helpers unmask, and what these hold up.

    Args:
        run: The run: it applies the events, and sends the messages.
        plan: What is fixed for the releases of the run.
        options: The server's options: how long an unmasking waits, in which time a helper sends three
            heartbeats, and names of a new committee in place of the recorded one.

    Attributes:
        helpers: The helpers, and the committee that they form.
        recorded: Sums that an earlier process made durable, by version.
        evidence: What releases have shown of helpers and sites.
    """

    def __init__(self, run: ServedRun, plan: ReleasePlan, options: ServerOptions) -> None:
        release = run.tensors.release
        assert isinstance(release, AwaitedSums)
        self._run, self._plan, self._times, self._sums = run, plan, options.unmasking, release
        self._lease = options.lease
        self.evidence = ReleaseEvidence(plan.privacy.fewest)
        self.helpers = HelperCommittee(plan, options.helpers, self.evidence.out, run)
        self.recorded: Mapping[Version, ReleaseSum] = {}
        # The client of each task whose update has arrived: four bytes a task.
        self._owners = array("i")
        # The helpers that were late in the last release.
        self._slow: frozenset[str] = frozenset()
        # What a site is told when it is there, by its client.
        self._untold: dict[ClientId, str] = {}
        # The manifest of the release at hand, once it is fixed.
        self._manifest: Releasing | None = None
        self._unmasking: AnyUnmasking | None = None
        # When the release at hand began, in seconds of the run's clock; None while there is none.
        self._began: float | None = None
        # Whether the sum of the release at hand was formed, or may have been.
        self._formed_sum = False
        # Releases in a row that have failed, and why the last one has.
        self._failed, self._last_failure = 0, ""
        # When the helpers of the release at hand are to be asked, while they are not being asked.
        self._ask_at = 0.0
        # When the log said last that they are asked again.
        self._told_at = -inf
        # The helpers that have gone instead of an answer, and have given none since.
        self._lost: set[str] = set()
        # Whether no release could be made when the run ended.
        self._ended_stuck = False
        # When helpers were heard last, and those that are silent.
        self._heard: dict[str, float] = {}
        self._silent: set[str] = set()

    # ---- state ----

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the helpers."""
        return self.helpers.names

    @property
    def connected(self) -> Collection[str]:
        """Names of the helpers that are there."""
        return self.helpers.connected

    @property
    def ready(self) -> bool:
        """Whether the committee is there."""
        return self.helpers.ready

    @property
    def away(self) -> tuple[str, ...]:
        """Names of the helpers for which the committee waits."""
        return tuple(self.helpers.away)

    @property
    def waiting(self) -> Version | None:
        """The release that waits for its sum; None means that none does."""
        return self._release.version if self._sums.waiting else None

    @property
    def view(self) -> HelpersView:
        """How the helpers are shown."""
        return self.helpers.view(
            self.waiting, self._silent, self.problem, stuck=self._stuck or self._ended_stuck
        )

    @property
    def problem(self) -> str | None:
        """What keeps helpers from helping, in one line; None means that nothing does."""
        if self._failed >= FAILURES:
            return SecureRefusal.FAILING.format(count=self._failed, reason=self._last_failure)
        if not self._lost:
            return None
        return SecureRefusal.LOST.format(names=", ".join(sorted(self._lost)))

    @property
    def _stuck(self) -> bool:
        """Whether no release is made because of helpers that were lost, or make them fail."""
        if self._failed >= FAILURES:
            return True
        there = set(self.connected) - set(self.evidence.out)
        return bool(self._sums.waiting and self._lost) and len(there) < self._formed().needed

    def enter_event(self, event: Event) -> None:
        """Follow the journal, also while it is repeated."""
        match event:
            case CommitteeFormed():
                self.helpers.enter(event)
                self.evidence.new_committee()
                self._slow, self._failed = frozenset(), 0
                self._lost.clear()
            case Releasing():
                self._manifest = event
            case Arrived():
                self._own(event)
            case Left():
                self.evidence.left(self._present)
            case Released():
                summed = () if self._manifest is None else self._manifest.tasks
                away = len(self.evidence.sent_away)
                self.evidence.note(event, summed, self._owners, self._present, self._formed())
                self._manifest = None
                self.helpers.note_instances(event.instances)
                # Neither the run's end nor a rollback says anything about helpers.
                if not is_given_up(event.reason) and event.reason != UPDATES_GONE:
                    # Without a site that is sent away the next releases may be right.
                    goes_on = not event.reason or len(self.evidence.sent_away) > away
                    self._failed = 0 if goes_on else self._failed + 1
                    self._last_failure = self._explained(event.reason, event.invalid)

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

    def _formed(self) -> Committee:
        assert self.helpers.formed is not None
        return self.helpers.formed

    def registered(self, name: str, message: Registered) -> Registered:
        """The answer to a registration, with the present names of the helpers."""
        plan = {**message.plan, "privacy": self.helpers.described(message.plan["privacy"])}
        return replace(message, plan=plan, site=name)

    def greet(self, site: SiteRecord) -> None:
        """Tell a connected site who the helpers are, and the fate of its update."""
        if self.helpers.ready:
            self._run.send(site.name, self._formed())
        self._tell_site(site.client)

    def _tell_site(self, client: ClientId) -> None:
        """Tell a reconnected site the fate of its update."""
        if (text := self._untold.pop(client, None)) is not None:
            self._run.send(self._run.registry.by_client[client].name, Rejected(text, final=False))

    def recall(self, event: Event) -> None:
        """Have the sum of a release ready that is about to be repeated. Raises `RunError` without it."""
        if isinstance(event, Released) and not event.reason:
            self._sums.sums[event.version] = self._recorded_sum(event)

    def recovered(self) -> None:
        """The journal has been repeated: events are new from now on."""
        self.helpers.recovered()
        # An earlier process may have formed the sum of these updates.
        self._formed_sum = self._manifest is not None

    def _recorded_sum(self, event: Released) -> Integers:
        record = self.recorded.get(event.version)
        if record is None or record.tasks != self._release.tasks:
            what = "is not there" if record is None else "is of other updates"
            raise RunError(
                f"release {event.version} cannot be made again: its sum in secrets.db {what}: "
                "restore the directory as a whole, or begin a new run"
            )
        return record.total

    # ---- helpers ----

    def receive(self, now: float, name: str, message: FromSite, registered: Registered) -> None:
        """Process a message of a helper.

        Args:
            now: When it came, in seconds of the run's clock.
            name: The helper's name.
            message: The message.
            registered: What a helper is told that registers.
        """
        self._hear(now, name)
        if self._run.stopped is not None:
            self._run.send(name, RunFinished(self._run.stopped))
        elif isinstance(message, Heartbeat):
            return
        elif isinstance(message, Register):
            self._register(now, name, message, registered)
        elif name not in self.connected:
            self._run.send(name, Rejected("this helper is not registered: register first", final=False))
            self._run.close(name, "the helper is not registered")
        elif isinstance(message, Leave):
            log.warning("helper left", extra={"helper": name, "reason": message.reason})
            self._run.close(name, "the helper has left")
            self._part(now, name)
        elif isinstance(message, UnmaskShare | UnmaskRefused):
            self._lost.discard(name)
            self._tell(name, lambda unmasking, number: unmasking.answered(number, message, now), now)

    def disconnected(self, now: float, name: str) -> None:
        """A helper's connection has ended."""
        if name in self.connected and self._run.stopped is None:
            reason = "its connection has ended"
            if self._unmasking is not None and name not in self.evidence.out:
                # What it has sent may have ended it: then it does so again.
                reason = f"{reason} instead of an answer to release {self._release.version}"
                self._lost.add(name)
                self._run.effects.told = True
            log.warning("helper lost", extra={"helper": name, "reason": reason})
        self._part(now, name)

    def _hear(self, now: float, name: str) -> None:
        """Note a sign of life of a helper."""
        self._heard[name] = now
        if name in self._silent:
            self._silent.discard(name)
            log.info("helper heard again", extra={"helper": name})

    def _note_silence(self, now: float) -> None:
        """Warn of connected helpers that have missed two of the three heartbeats of a lease."""
        for name in sorted(set(self.connected) - self._silent):
            if (seconds := now - self._heard[name]) > SILENCE * self._lease:
                self._silent.add(name)
                reason = f"it is connected, and nothing of it has come for {seconds:.0f} s"
                log.warning("helper silent", extra={"helper": name, "reason": reason})

    def _part(self, now: float, name: str) -> None:
        """A helper is not there any more."""
        self.helpers.connected.discard(name)
        self._silent.discard(name)
        self._tell(name, lambda unmasking, number: unmasking.departed(number, now), now)

    def _tell(self, name: str, what: Callable[[AnyUnmasking, int], list[Effect]], now: float) -> None:
        """Tell the unmasking something of a helper, if there is one and it is the helper's."""
        if self._unmasking is not None and (number := self.helpers.number(name)) is not None:
            self._follow(now, what(self._unmasking, number))

    def _register(self, now: float, name: str, register: Register, registered: Registered) -> None:
        if (reason := self.helpers.register(name, register)) is not None:
            log.error("helper refused", extra={"helper": name, "reason": reason})
            self._run.send(name, Rejected(reason))
            self._run.close(name, reason)
            self.helpers.warn_if_too_few()
            return
        told = {"helper": name}
        if not self.helpers.ready and self.helpers.away:
            told["reason"] = f"the committee waits for {', '.join(self.helpers.away)}"
        log.info("helper joined", extra=told)
        self._run.send(name, registered)
        if self.helpers.ready:
            self._run.send(name, self._formed())
            self._tell(name, lambda unmasking, number: unmasking.arrived(number, now), now)
            # A helper that comes may be one that was mended.
            self._ask_at = 0.0
        elif self.helpers.complete:
            self._form(now)

    def _form(self, now: float) -> None:
        """Form the committee: all its helpers are there."""
        first = self.helpers.formed is None
        self.fail(now, SecureRefusal.OTHER_HELPERS)
        self._run.apply(now, event := self.helpers.next_committee())
        self.helpers.keep()
        if first:
            log.info("guards against bad updates see sums only")
        sites = self._run.registry.sites.values()
        log.info("committee formed", extra={"epoch": event.epoch, "helpers": ", ".join(self.names)})
        for name in (*self.names, *(site.name for site in sites if site.connected)):
            self._run.send(name, self._formed())

    # ---- a release ----

    def tick(self, now: float) -> None:
        """Let time pass: answers that are late are not awaited, and a release that waits begins."""
        self._part_with_sites(now)
        self._note_silence(now)
        if self._unmasking is not None:
            self._follow(now, self._unmasking.tick(now))
        elif self._sums.waiting and self.helpers.ready and now >= self._ask_at:
            self._begin_release(now)

    @property
    def deadline(self) -> float:
        """When `tick` is to be called next while the run waits, in seconds of its clock."""
        if self._unmasking is not None:
            return self._unmasking.deadline
        return self._ask_at if self._sums.waiting and self.helpers.ready else inf

    def _begin_release(self, now: float) -> None:
        """Begin the unmasking of the release that waits, or go on with it after a restart."""
        if not self.helpers.ready or self._unmasking is not None:
            return
        command, manifest, committee = self._release, self._manifest, self._formed()
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
        if manifest is None and len(entries) < committee.least:
            self._finish(now, UPDATES_GONE)
            return
        fixed = None
        if manifest is not None:
            own = [(task, clients[task], weights[task]) for task in manifest.tasks]
            digest = bytes.fromhex(manifest.manifest)
            fixed = CommitManifest(command.version, tuple(own), manifest.left_out, digest)
        begun = committee, command.version, entries, lambda task: unpacked[task][0], now, self._times, fixed
        if committee.votes:
            self._unmasking = VotedUnmasking(*begun, frozenset(self.helpers.numbers(self._slow)))
        else:
            self._unmasking = Unmasking(*begun)
        self._began = now if self._began is None else self._began
        there = set(self.connected) - set(self.evidence.out)
        self._follow(now, self._unmasking.begin(self.helpers.numbers(there), now))

    def fail(self, now: float, reason: str) -> None:
        """Give up the releases that wait.

        Args:
            now: The time, in seconds of the run's clock.
            reason: Why, with the release's number in braces.
        """
        self._unmasking = None
        self._ended_stuck = is_given_up(reason) and self._stuck
        while self._sums.waiting:
            self._finish(now, reason.replace("{release}", str(self._release.version)), goes_on=False)

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
            self._fail_or_wait(now, unmasking.reason or "")

    def _fail_or_wait(self, now: float, reason: str, *, invalid: bool = False) -> None:
        """End a release that has failed; after several in a row it waits, and its helpers are asked again.

        So a helper that makes all of them fail, which may be mended, costs no more than one that is away.
        """
        assert self._began is not None
        self._formed_sum |= invalid
        given_up = inf if self._times.give_up is None else self._began + self._times.give_up
        if self._failed < (SEARCHED if self.evidence.aside else FAILURES) or now >= given_up:
            self._finish(now, reason, invalid=invalid)
            return
        self._unmasking, self._last_failure = None, self._explained(reason, invalid)
        self._ask_at = min(now + ASK_AGAIN, given_up)
        if now >= self._told_at + ASK_AGAIN:
            self._told_at = now
            log.error("release waits", extra={"release": self._release.version, "reason": self.problem})

    def _explained(self, reason: str, invalid: bool) -> str:
        """Why a release has failed, with those who may be to blame."""
        return f"{reason} ({self._who_spoils})" if invalid else reason

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
        if reason is not None:
            self._fail_or_wait(now, reason, invalid=True)
        else:
            self._finish(now, "", unmasking.total)

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
            seconds, left_out = now - (self._began or 0.0), unmasking.left_out
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
            tuple(sorted(complaints.items())), at_fault, invalid, formed=bool(reason) and self._formed_sum,
        )  # fmt: skip
        before = set(self.evidence.out), list(self.evidence.aside), set(self.evidence.sent_away)
        self._formed_sum, self._ask_at, self._began = False, 0.0, None
        self._run.apply(now, event)
        self._tell_left_out(command.version, left_out, complaints)
        self._part_with_helpers(now, at_fault, before[0])
        if invalid and list(self.evidence.aside) == before[1]:
            told = {"release": command.version, "reason": self._who_spoils}
            log.warning("who spoils sums cannot be told yet", extra=told)
        self._part_with_sites(now)
        self._tell_sent_away(before[2])
        if goes_on and self._sums.waiting:
            self._begin_release(now)

    # ---- helpers and sites that are to blame ----

    @property
    def _who_spoils(self) -> str:
        """The clients that may have spoiled a sum, in words."""
        if self.helpers.formed is not None and self.helpers.formed.votes:
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
                self._part(now, name)
            self.helpers.warn_if_too_few()

    def _tell_sent_away(self, before: set[ClientId]) -> None:
        """Tell the operator of sites that are sent away while they are not there: the others leave."""
        for client in sorted(set(self.evidence.sent_away) - before):
            site = self._run.registry.by_client[client]
            if not site.present:
                told = {"site": site.name, "reason": self.evidence.sent_away[client]}
                log.warning("site sent away", extra=told)

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
