"""The committee of a secure run at its server: which helpers may help, who is there, and how it is formed.

A committee is formed once all of its helpers are there, and goes on with their keys. An operator may have it
replaced by one of other helpers. The committee itself follows from the journal; who is connected does not.
"""

import logging
import os
from collections.abc import Collection, Mapping
from typing import Any

from offbeat.core.errors import UsageError
from offbeat.core.events import CommitteeFormed, Version
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.net.messages import Register
from offbeat.net.monitor.snapshot import HelpersView, helpers_text
from offbeat.net.secure.served_run import ServedRun
from offbeat.secure.committee import Committee, CommitteeMember
from offbeat.secure.refusals import SecureRefusal
from offbeat.secure.unmasking import check_instance

log = logging.getLogger(__name__)
RUN_BYTES = 32


class HelperCommittee:
    """The helpers of a run, and the committee that they form.

    Args:
        plan: What is fixed for the releases of the run.
        new_helpers: Names of the helpers of a new committee, in place of the recorded one; None means that
            the recorded one goes on.
        out: Why helpers are not asked any more, by name, as the releases have shown.
        run: The run, which closes helpers' connections.

    Attributes:
        names: Names of the helpers.
        formed: The committee; None before there is one.
        connected: Names of the helpers that are there.
    """

    def __init__(
        self,
        plan: ReleasePlan,
        new_helpers: tuple[str, ...] | None,
        out: Mapping[str, str],
        run: ServedRun,
    ) -> None:
        assert plan.privacy.secure is not None
        self._plan, self._secure, self._out, self._run = plan, plan.privacy.secure, out, run
        self._replaces, self._forming = new_helpers is not None, True
        self.names = new_helpers or plan.privacy.secure.helpers
        self._known = {*plan.privacy.secure.helpers, *self.names}
        self.formed: Committee | None = None
        self.connected: set[str] = set()
        # The keys by which the helpers of the next committee have registered.
        self._keys: dict[str, tuple[bytes, bytes]] = {}
        # The largest instances of helpers that were seen.
        self._instances: dict[str, int] = {}
        # The helpers of the committee that cannot help any more.
        self._gone: set[str] = set()

    @property
    def ready(self) -> bool:
        """Whether there is a committee, and no other one is being formed."""
        return self.formed is not None and not self._forming

    @property
    def complete(self) -> bool:
        """Whether all helpers are there, of whom a committee can be formed."""
        return self.connected >= set(self.names)

    @property
    def away(self) -> tuple[str, ...]:
        """Names of the helpers that are not there, in their order."""
        return tuple(name for name in self.names if name not in self.connected)

    def view(
        self, waiting: Version | None, silent: Collection[str], problem: str | None, *, stuck: bool
    ) -> HelpersView:
        """How the helpers are shown.

        Args:
            waiting: The release that waits for its sum. None means that none does.
            silent: The connected helpers of which nothing comes.
            problem: What keeps helpers from helping. None means that nothing does.
            stuck: Whether no release is made because of it.
        """
        text = helpers_text([self._standing(name, silent) for name in self.names], waiting, formed=self.ready)
        known = tuple(sorted(self._known))
        return HelpersView(text, len(self.connected), waiting, known, self.ready, problem, stuck)

    def _standing(self, name: str, silent: Collection[str]) -> str:
        if name in self._out:
            return f"{name} (out)"
        if name not in self.connected:
            return f"{name} (away)"
        return f"{name} (silent)" if name in silent else name

    def number(self, name: str) -> int | None:
        """A helper's number in the committee, None while it is not in it."""
        assert self.formed is not None
        names = [helper.name for helper in self.formed.helpers]
        return names.index(name) if name in names else None

    def numbers(self, names: Collection[str]) -> list[int]:
        """The numbers of the helpers that are in the committee."""
        found = (self.number(name) for name in names)
        return [number for number in found if number is not None]

    def described(self, privacy: Mapping[str, Any]) -> dict[str, Any]:
        """The options of privacy that a site is told, with the present names of the helpers."""
        return {**privacy, "secure": {**privacy["secure"], "helpers": list(self.names)}}

    # ---- the journal ----

    def enter(self, event: CommitteeFormed) -> None:
        """A committee has been formed."""
        self.formed, self._forming = self._committee(event), False
        names = tuple(name for name, *_ in event.helpers)
        self._known.update(names)
        if not self._replaces:
            self.names = names
        self._instances.clear()
        self._gone.clear()

    def note_instances(self, instances: Mapping[str, int]) -> None:
        """Helpers have answered as these instances, by name."""
        for name, instance in instances.items():
            self._instances[name] = max(instance, self._instances.get(name, 0))

    def recovered(self) -> None:
        """The journal has been repeated: is another committee asked for?"""
        if self.formed is not None:
            self._forming = self.names != tuple(helper.name for helper in self.formed.helpers)

    def _committee(self, event: CommitteeFormed) -> Committee:
        privacy = self._plan.privacy
        assert privacy.most is not None
        assert privacy.clip is not None
        members = tuple(
            CommitteeMember(name, *(bytes.fromhex(key) for key in keys)) for name, *keys in event.helpers
        )
        return Committee(
            run=bytes.fromhex(event.run), epoch=event.epoch, helpers=members,
            colluding=self._secure.most_colluding, least=privacy.fewest,
            colluding_clients=privacy.colluding_clients, most=privacy.most, dominance=privacy.dominance,
            weight_bits=privacy.bits, parameters=self._plan.parameters, clip=privacy.clip,
        )  # fmt: skip

    # ---- helpers that come ----

    def register(self, name: str, register: Register) -> str | None:
        """Register a helper that has come; why it may not help, or None."""
        if (reason := self._refusal(name, register)) is not None:
            return reason
        self.connected.add(name)
        self._keys[name] = register.public_key, register.verify_key
        return None

    def next_committee(self) -> CommitteeFormed:
        """The event by which those that are there form the committee."""
        before = self.formed
        run = os.urandom(RUN_BYTES) if before is None else before.run
        keys = ((name, *self._keys[name]) for name in self.names)
        helpers = tuple((name, public.hex(), verify.hex()) for name, public, verify in keys)
        epoch = 1 if before is None else before.epoch + 1
        return CommitteeFormed(epoch, run.hex(), helpers)

    def keep(self) -> None:
        """A server's process replaces its committee once: this one stays."""
        self._replaces = False

    def _refusal(self, name: str, register: Register) -> str | None:
        """Why a helper may not help; None if it may."""
        if not len(register.public_key) == len(register.verify_key) == RUN_BYTES:
            return SecureRefusal.NOT_A_SITE.format(name=name)
        if self.ready and name in self._out:
            return self._out[name]
        own = None if self.formed is None else {h.name: h.public_key for h in self.formed.helpers}
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

    def warn_if_too_few(self) -> None:
        """Tell the operator that no release can be made any more, or that no helper may fail."""
        if self.formed is None or not (self._gone or self._out):
            return
        available = len(self.formed.helpers) - len(self._gone | set(self._out))
        needed = self.formed.needed
        if available < needed:
            reason = SecureRefusal.FEW_HELPERS.format(left=available, needed=needed)
            log.error("too few helpers", extra={"reason": reason})
        elif available == needed:
            reason = SecureRefusal.FEWEST_LEFT.format(left=available, needed=needed)
            log.warning("no helper may fail", extra={"reason": reason})
