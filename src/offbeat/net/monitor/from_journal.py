"""Snapshot of a run from its directory, without its server; the newest rows for the live page."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from offbeat.core.client_times import ClientTimes
from offbeat.core.events import is_given_up
from offbeat.core.journal import Row
from offbeat.core.metric_names import NamedMetric, in_order, is_statistic
from offbeat.core.privacy.ledger import PrivacyLedger, ReleasePlan
from offbeat.net.monitor.snapshot import (
    HelpersView,
    MirrorView,
    SiteState,
    SiteView,
    Snapshot,
    ended,
    helpers_text,
    title_of,
)
from offbeat.runs.record import RunRecord, flat
from offbeat.runs.schema import Metric

TIMELINE_ROWS = 4000
EVALUATIONS = 5000
# A server's reason begins so for a task whose update it has refused.
_REJECTED = "rejected: "
# A guard's reason begins so.
_GUARD = "the norm of its "
_COUNTS = ("arrived", "aggregated", "dropped", "discarded", "lost")
_SHOWN = (
    "joined",
    "train",
    "arrived",
    "ready",
    "discard",
    "lost",
    "left",
    "wants_model",
    "recall",
    "aggregate",
)


@dataclass(slots=True)
class JournalView:
    """State of a snapshot, built from the rows of a journal in their order.

    A journal does not have the steps done of a current task, which are therefore 0, nor refusals other than
    those of updates.

    Args:
        run: Identifier of the run.
        label: Label of the run.
        algorithm: Name of the algorithm.
        names: Names of the sites by client. A client without a name is "client N".
    """

    run: str
    label: str
    algorithm: str
    names: Mapping[int, str]
    now: float = 0.0
    version: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    rejected: Counter[str] = field(default_factory=Counter)
    stopped: str | None = None
    skipped: int = 0
    rollbacks: int = 0
    ledger: PrivacyLedger | None = None
    spent: int = 0
    helpers: tuple[str, ...] = ()
    helped_by: set[str] = field(default_factory=set)
    formed: bool = False
    released: int = 0
    begins_with: int | None = None
    began: float | None = None
    mirror: MirrorView | None = None
    warning: str | None = None
    problem: str | None = None
    title: str = ""
    times: ClientTimes = field(default_factory=ClientTimes)
    _sites: dict[int, SiteView] = field(default_factory=dict)

    def feed(self, row: Row) -> None:
        """Take the next row.

        Args:
            row: Row of the journal, the one after the last.
        """
        data = row.data or {}
        self.now = max(self.now, row.t)
        self.times.feed(row)
        if self.ledger is not None and self.ledger.read(row):
            self.spent = data["spent"]
        if row.name == "aggregate":
            self.version = row.version or self.version
            self.counts["aggregated"] += len(data["tasks"])
        elif row.name == "drop":
            self.counts["dropped"] += 1
        elif row.name == "stop":
            self.stopped = data["reason"]
        elif row.name == "begin":
            self.begins_with, self.began = None, row.t
        elif row.name == "skipped":
            self.skipped += not is_given_up(data["reason"])
        elif row.name == "committee":
            self.helpers, self.formed = tuple(name for name, *_ in data["helpers"]), True
            self.helped_by.update(self.helpers)
        elif row.name == "released":
            self.released = row.version or self.released
        elif row.name == "rolled_back":
            self.version, self.rollbacks = row.version or self.version, self.rollbacks + 1
            self.released = self.version
        elif row.client is not None:
            self._apply_to_site(row, data, self._site(row.client))

    def _helpers(self) -> HelpersView | None:
        if not self.helpers:
            return None
        waiting = self.released + 1 if self.released < self.version and self.stopped is None else None
        text = helpers_text(self.helpers, waiting, formed=self.formed)
        return HelpersView(text, None, waiting, tuple(sorted(self.helped_by)), self.formed, self.problem)

    def _privacy(self) -> Mapping[str, float] | None:
        """Privacy spent; the clients that left for it are those of the journal's last release."""
        return None if self.ledger is None else {**self.ledger.summary(), "spent": self.spent}

    def snapshot(self, last: Metric | None = None) -> Snapshot:
        """The run as of the last row.

        Args:
            last: The last evaluation, with metrics and numbers of bytes. None means none, and 0 bytes.

        Returns:
            The snapshot; later rows leave it as it is.
        """
        sites = tuple(
            replace(site, times=self.times.shares(client, self.now))
            for client, site in sorted(self._sites.items())
        )
        if self.stopped is not None:
            sites = tuple(ended(site) for site in sites)
        return Snapshot(
            self.run, self.label, self.algorithm, self.now, self.version,
            running=sum(site.state == "training" for site in sites), **self.counts,
            bytes_up=last.bytes_up if last else 0, bytes_down=last.bytes_down if last else 0,
            rejected=dict(self.rejected), sites=sites, stopped=self.stopped,
            metrics=last.found if last else {}, skipped=self.skipped, rollbacks=self.rollbacks, diverged=None,
            warning=self.warning,
            privacy=self._privacy(), helpers=self._helpers(),
            begins_with=self.begins_with, mirror=self.mirror, began=self.began, title=self.title,
            guarded=sum(count for reason, count in self.rejected.items() if reason.startswith(_GUARD)),
        )  # fmt: skip

    def _site(self, client: int) -> SiteView:
        if client not in self._sites:
            self._sites[client] = SiteView(client, self.names.get(client, f"client {client}"))
        return self._sites[client]

    def _apply_to_site(self, row: Row, data: Mapping[str, Any], site: SiteView) -> None:
        if row.kind == "event":
            site.last_seen = row.t
        match row.name:
            case "joined":
                site.samples = data["samples"]
                site.state, site.task = ("idle", None) if row.task is None else ("training", row.task)
            case "train":
                site.state, site.task, site.steps = "training", row.task, row.steps or 0
            case "ready":
                site.state = "waiting"
            case "arrived":
                self.counts["arrived"] += 1
                site.updates += 1
                site.staleness = -1 if row.staleness is None else row.staleness
                seconds = data.get("seconds") or 0.0
                site.speed = (row.steps or 0) / seconds if seconds > 0 else 0.0
                self._end_task(row, site, "idle")
            case "lost" | "left":
                self.counts["lost"] += row.task is not None
                reason = str(data.get("reason", ""))
                if reason.startswith(_REJECTED):
                    self.rejected[reason.removeprefix(_REJECTED)] += 1
                self._end_task(row, site, "idle" if row.name == "lost" else "away")
            case "discard":
                self.counts["discarded"] += 1
                self._end_task(row, site, "idle")

    def _end_task(self, row: Row, site: SiteView, state: SiteState) -> None:
        """End the site's task, if it is the one in training."""
        if row.name == "left" or site.task in (None, row.task):
            site.state, site.task, site.steps = state, None, 0


def snapshot_of(record: RunRecord) -> Snapshot:
    """The snapshot of a run from its directory.

    Args:
        record: A run, running or ended.

    Returns:
        The snapshot as of the last row of the journal.
    """
    view = JournalView(record.path.resolve().name, record.label, record.algorithm, record.site_names())
    if "privacy" in record.meta:
        plan = ReleasePlan.read(record.meta["privacy"])
        if plan.noise is not None:
            view.ledger = PrivacyLedger(plan)
        if plan.privacy.secure is not None:
            view.helpers = plan.privacy.secure.helpers
            view.helped_by.update(view.helpers)
    view.title, view.begins_with = title_of(record.recipe), record.meta.get("clients")
    view.mirror, view.warning = _mirror(record), record.meta.get("warning")
    view.problem = record.meta.get("helpers")
    for row in record.rows():
        view.feed(row)
    view.now = max(view.now, record.duration)
    view.stopped = view.stopped or record.stop_reason
    return view.snapshot(record.last_evaluation())


def _mirror(record: RunRecord) -> MirrorView | None:
    """The mirror as the server told of it last, if it has one."""
    told = record.meta.get("mirror")
    if not isinstance(told, dict) or not isinstance(told.get("directory"), str):
        return None
    problem = told.get("problem")
    return MirrorView(told["directory"], None if problem is None else str(problem))


def timeline_since(record: RunRecord, since: int | None = None) -> dict[str, Any]:
    """Journal rows for the timeline, at most `TIMELINE_ROWS` of the journal's.

    Args:
        record: A run, running or ended.
        since: The rows after the one with this `seq`. None means the newest ones.

    Returns:
        "rows", each [seq, t, name, client, task, steps, staleness], and "next", the `since` to continue with.
    """
    after = record.length - 1 - TIMELINE_ROWS if since is None else since
    found = list(record.rows(after=after, limit=TIMELINE_ROWS))
    rows = [[r.seq, r.t, r.name, r.client, r.task, r.steps, r.staleness] for r in found if r.name in _SHOWN]
    return {"next": found[-1].seq if found else max(after, -1), "rows": rows}


def metrics_since(record: RunRecord, since: int | None = None) -> dict[str, Any]:
    """Evaluations of the global model, at most `EVALUATIONS`.

    Args:
        record: A run, running or ended.
        since: The evaluations after the one with this `seq`. None means from the first.

    Returns:
        "rows", a mapping for each evaluation; "next", the `since` to continue with; "metrics", how each
        metric in these rows is shown, by name, in the order in which they are shown.
    """
    found = record.evaluations(after=since, limit=EVALUATIONS)
    last = found[-1].seq if found else -1 if since is None else since
    names = in_order(name for metric in found for name in metric.found)
    return {
        "next": last,
        "rows": [{"seq": metric.seq, **flat(metric)} for metric in found],
        "metrics": {name: {"words": m.words, "higher": m.higher_is_better, "share": m.is_share,
                           "statistic": is_statistic(name)}
                    for name in names for m in [NamedMetric.of(name, record.higher_is_better)]},
    }  # fmt: skip
