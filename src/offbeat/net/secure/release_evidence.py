"""Evidence from the releases of a secure run on its helpers and sites, and who is excluded by it.

All of it follows from the journal, so a server that is started again knows the same.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from offbeat.core.events import ClientId, Released, TaskId
from offbeat.secure.committee import Committee
from offbeat.secure.invalid_sums import SpoiledSums
from offbeat.secure.refusals import SecureRefusal

MINORITIES = 2
"""How often a helper is in the minority before it is out."""
UNOPENED = 3
"""Releases in a row in which a site's seeds do not decrypt before it is sent away."""


class ReleaseEvidence:
    """Counts faults of helpers and sites.

    Args:
        fewest: Fewest clients of a release.

    Attributes:
        out: Why helpers of the committee are out, by name: they are not asked any more.
        sent_away: Why sites are sent away for good, by client.
    """

    def __init__(self, fewest: int) -> None:
        self._fewest = fewest
        self.out: dict[str, str] = {}
        self.sent_away: dict[ClientId, str] = {}
        self._sums = SpoiledSums(fewest)
        self._minorities: Counter[str] = Counter()
        self._unopened: Counter[ClientId] = Counter()  # releases in a row
        # The clients of which a helper alone complained, by helper.
        self._accused: defaultdict[str, set[ClientId]] = defaultdict(set)

    @property
    def aside(self) -> Collection[ClientId]:
        """The sites that are put aside, while releases without them are tried."""
        return self._sums.aside

    def new_committee(self) -> None:
        """Other helpers have taken the place of those that this has counted."""
        self.out.clear()
        self._minorities.clear()
        self._accused.clear()

    def note(
        self,
        event: Released,
        summed: Collection[TaskId],
        owners: Sequence[ClientId],
        present: Collection[ClientId],
        committee: Committee,
    ) -> None:
        """Note how a release has ended.

        Args:
            event: Its end.
            summed: The tasks of its manifest; none of a release that had none.
            owners: The client of each task.
            present: The clients that are there.
            committee: Its helpers.
        """
        for name, reason in event.at_fault.items():
            self._minorities[name] += 1
            if self._minorities[name] >= MINORITIES:
                self.out.setdefault(name, SecureRefusal.OUT.format(name=name, reason=reason))
        for task in summed:
            self._unopened.pop(owners[task], None)
        for task, helpers in event.complaints:
            if task in event.left_out and self._is_evidence(helpers, owners[task], committee):
                self._not_opened(event, owners[task], helpers)
        if summed and (event.invalid or not event.reason):
            there = set(present) - set(self.aside) - set(self.sent_away)
            clients = {owners[task] for task in summed}
            self._sums.note(clients, not event.invalid, there, sure=committee.votes)
            for client in self._sums.sent_away:
                self.sent_away.setdefault(client, SecureRefusal.SPOILS.value)

    def _is_evidence(self, helpers: tuple[str, ...], client: ClientId, committee: Committee) -> bool:
        """Whether a complaint of these helpers about a site's seeds is the site's fault.

        Where helpers vote, a majority of the holders of a group has seen it. Elsewhere nobody can check what
        one helper says, so one that is alone with it is believed about the first site, and not about others.
        """
        if committee.votes:
            return len(helpers) >= committee.majority
        if len(helpers) > 1:
            return True
        accused = self._accused[helpers[0]]
        accused.add(client)
        return len(accused) == 1

    def _not_opened(self, event: Released, client: ClientId, helpers: tuple[str, ...]) -> None:
        self._unopened[client] += 1
        if (times := self._unopened[client]) >= UNOPENED:
            told = {"times": times, "release": event.version, "names": ", ".join(helpers)}
            self.sent_away.setdefault(client, SecureRefusal.NOT_OPENED.format(**told))

    def left(self, present: Collection[ClientId]) -> None:
        """A site has left: bring back the sites that are aside if too few are left.

        Args:
            present: The clients that are there.
        """
        if self.aside and len(set(present) - set(self.aside) - set(self.sent_away)) < self._fewest:
            self._sums.bring_back()
