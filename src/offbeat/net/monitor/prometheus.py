"""Prometheus metrics of a running server, made from a snapshot at every scrape.

Names end in their unit; counters end in `_total`. Everything about one site has the label `site`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import get_args

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from offbeat.net.monitor.snapshot import SiteState, SiteView, Snapshot
from offbeat.runs.schema import Metric

SHARED_CREDENTIAL = ("duplicate", "key", "replaced", "without key")
"""Reasons of refusals of a process that has the credential of another one."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

GAUGES: dict[str, tuple[str, Callable[[Snapshot], float]]] = {
    "run_seconds": ("Seconds of the run's clock.", lambda s: s.now),
    "version": ("Number of the current global model.", lambda s: s.version),
    "running_tasks": ("Tasks in training.", lambda s: s.running),
    "stopped": ("1 once the run has ended.", lambda s: s.stopped is not None),
    "diverged": ("1 while the updates of most sites are refused.", lambda s: s.diverged is not None),
}
PRIVACY: dict[str, tuple[str, str]] = {
    "privacy_epsilon": ("Epsilon that the busiest client has spent.", "epsilon"),
    "privacy_budget": ("Epsilon that a client may spend.", "budget"),
    "privacy_clients_spent": ("Clients whose privacy budget is spent.", "spent"),
}
COUNTERS: dict[str, tuple[str, Callable[[Snapshot], float]]] = {
    "arrived_updates": ("Updates taken in.", lambda s: s.arrived),
    "aggregated_updates": ("Updates that a version was made of.", lambda s: s.aggregated),
    "dropped_updates": ("Updates taken in that the algorithm chose not to use.", lambda s: s.dropped),
    "discarded_tasks": ("Tasks that the algorithm stopped.", lambda s: s.discarded),
    "lost_tasks": ("Tasks that came to nothing.", lambda s: s.lost),
    "guard_refused_updates": ("Updates that the guard has refused.", lambda s: s.guarded),
    "skipped_versions": ("Versions skipped: refused, or too large to be sent.", lambda s: s.skipped),
    "rollbacks": ("Returns to an earlier version.", lambda s: s.rollbacks),
    "received_bytes": ("Bytes of updates from sites.", lambda s: s.bytes_up),
    "unused_bytes": ("Bytes of updates whose tasks had been stopped.", lambda s: s.unused_bytes),
    "sent_bytes": ("Bytes of models to sites.", lambda s: s.bytes_down),
}
SITE_GAUGES: dict[str, tuple[str, Callable[[SiteView, float], float | None]]] = {
    "site_samples": ("Training samples of the site.", lambda s, _: s.samples),
    "site_steps_done": ("Local steps done of its task in hand.", lambda s, _: s.steps_done),
    "site_steps": ("Local steps of its task in hand.", lambda s, _: s.steps),
    "site_steps_per_second": ("Local steps per second of its last task.", lambda s, _: s.speed or None),
    "site_staleness_versions": (
        "Versions published while it trained its last update.",
        lambda s, _: s.staleness if s.staleness >= 0 else None,
    ),
    "site_update_persistence": (
        "How much its updates point the same way, 0 to 1.",
        lambda s, _: s.persistence,
    ),
    "site_update_size": ("Norm of its updates beside that of the median site.", lambda s, _: s.size),
    "site_silent_seconds": (
        "Seconds since it was last heard.",
        lambda s, now: None if s.last_seen is None else max(0.0, now - s.last_seen),
    ),
}


def exposition(
    snapshot: Snapshot, evaluation: Metric | None = None, expires_in: Mapping[str, float] = {}
) -> bytes:
    """The text of a scrape.

    Args:
        snapshot: The server now.
        evaluation: Its latest evaluation. None means none.
        expires_in: Seconds until a credential expires, by its owner: a site, or "@server" of the certificate.

    Returns:
        Prometheus's text format, in UTF-8.
    """
    return generate_latest(_SnapshotCollector(snapshot, evaluation, expires_in))


@dataclass(frozen=True)
class _SnapshotCollector(Collector):
    snapshot: Snapshot
    evaluation: Metric | None
    expires_in: Mapping[str, float]

    def collect(self) -> Iterator[Family]:
        """Every metric, in the order of the tables above."""
        s = self.snapshot
        run = {"run": s.run, "label": s.label, "algorithm": s.algorithm}
        yield InfoMetricFamily("offbeat_run", "The run and its algorithm.", run)
        for name, (words, gauge) in GAUGES.items():
            yield GaugeMetricFamily(f"offbeat_{name}", words, gauge(s))
        for name, (words, key) in PRIVACY.items():
            if s.privacy is not None and key in s.privacy:
                yield GaugeMetricFamily(f"offbeat_{name}", words, s.privacy[key])
        words = "1 while the run waits for its first sites and helpers."
        yield GaugeMetricFamily("offbeat_waiting_to_begin", words, s.waits_for is not None)
        if s.helpers is not None and s.helpers.connected is not None:
            words = "Helpers of secure aggregation that are connected."
            yield GaugeMetricFamily("offbeat_helpers_connected", words, s.helpers.connected)
            words, waits = "1 while a release waits for its helpers.", s.helpers.waiting is not None
            yield GaugeMetricFamily("offbeat_release_waiting", words, waits)
        if s.mirror is not None:
            words = "1 while the mirror has all that was acknowledged."
            yield GaugeMetricFamily("offbeat_mirror_whole", words, s.mirror.problem is None)
        for name, (words, counter) in COUNTERS.items():
            yield CounterMetricFamily(f"offbeat_{name}", words, counter(s))
        rejected = CounterMetricFamily(
            "offbeat_rejected_messages",
            "What was refused: messages, updates, connections.",
            labels=["reason"],
        )
        # A counter that begins above 0 has not increased, for Prometheus.
        for reason, count in sorted({**dict.fromkeys(SHARED_CREDENTIAL, 0), **s.rejected}.items()):
            rejected.add_metric([reason], count)
        yield rejected
        expiring = GaugeMetricFamily(
            "offbeat_credential_expires_seconds",
            "Seconds until the credential of an owner expires.",
            labels=["owner"],
        )
        for owner, seconds in sorted(self.expires_in.items()):
            expiring.add_metric([owner], seconds)
        yield expiring
        yield from _model_metrics(self.evaluation)
        yield from _site_metrics(s)


def _model_metrics(evaluation: Metric | None) -> Iterator[Family]:
    if evaluation is None:
        return
    metrics = GaugeMetricFamily(
        "offbeat_metric", "Metrics of the global model when last evaluated, by name.", labels=["name"]
    )
    for name, value in evaluation.found.items():
        metrics.add_metric([name], value)
    yield metrics
    measured = {
        "accuracy_ratio": ("Accuracy of the global model when last evaluated, 0 to 1.", evaluation.accuracy),
        "loss": ("Loss of the global model when last evaluated.", evaluation.loss),
        "evaluated_version": ("The version last evaluated.", evaluation.version),
    }
    for name, (words, value) in measured.items():
        if value is not None:
            yield GaugeMetricFamily(f"offbeat_{name}", words, value)


def _site_metrics(s: Snapshot) -> Iterator[Family]:
    states = GaugeMetricFamily(
        "offbeat_site_state", "1 for the state that the site is in.", labels=["site", "state"]
    )
    updates = CounterMetricFamily("offbeat_site_updates", "Updates taken in from it.", labels=["site"])
    for site in s.sites:
        for state in get_args(SiteState):
            states.add_metric([site.name, state], site.state == state)
        updates.add_metric([site.name], site.updates)
    yield states
    yield updates
    for name, (words, measure) in SITE_GAUGES.items():
        family = GaugeMetricFamily(f"offbeat_{name}", words, labels=["site"])
        for site in s.sites:
            value = measure(site, s.now)
            if value is not None:
                family.add_metric([site.name], value)
        yield family
    shares = GaugeMetricFamily(
        "offbeat_site_time_ratio", "Share of its time that it spent so, 0 to 1.", labels=["site", "on"]
    )
    for site in s.sites:
        for on, share in ({} if site.times is None else asdict(site.times)).items():
            shares.add_metric([site.name, on], share)
    yield shares
