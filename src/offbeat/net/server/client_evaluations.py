"""Evaluations at the sites: who is asked, what they have found, and when that is enough.

One version at a time, of those that wait the newest. Every site that is present and holds out samples is
asked. An evaluation is done when each has answered or left, or at its deadline with those that have; a site
that was away meanwhile is asked when it is back.
"""

from collections.abc import Callable, Mapping
from math import inf

from offbeat.core.events import ClientId, Metrics, Version
from offbeat.metrics.clients import aggregate_clients
from offbeat.net.messages import EvaluationRequest, EvaluationResult, FromServer
from offbeat.net.server.effects import DoneEvaluation, Evaluation
from offbeat.net.server.metric_names import MetricNames
from offbeat.net.server.site_registry import Registry, SiteRecord
from offbeat.net.server.validation import check_evaluation


class ClientEvaluations:
    """The evaluation under way, and the one that is next.

    Args:
        registry: The sites.
        send: Sends a message to a site.
        at_server: Has the server evaluate a version too; None means that it does not.
        timeout: Seconds after which an evaluation is done with those sites that have answered.
        higher_is_better: Whether more is better of the metrics whose names do not tell.

    Attributes:
        deadline: When the evaluation under way is done at the latest, in seconds of the run's clock.
        last: Version that was evaluated last; -1 before.
    """

    def __init__(
        self,
        registry: Registry,
        send: Callable[[str, FromServer], None],
        at_server: Callable[[Evaluation], None] | None,
        timeout: float,
        higher_is_better: Mapping[str, bool] = {},
    ) -> None:
        self.deadline, self.last = inf, -1
        self._registry, self._send, self._at_server, self._timeout = registry, send, at_server, timeout
        self._higher_is_better = higher_is_better
        self._names = MetricNames(("loss", "accuracy", *higher_is_better))
        self._current: Evaluation | None = None
        self._waiting: Evaluation | None = None
        self._asked: set[ClientId] = set()
        self._found: dict[ClientId, tuple[int, Metrics]] = {}
        self._server_found: Metrics | None = None

    @property
    def idle(self) -> bool:
        """Whether no evaluation is under way."""
        return self._current is None

    def request(self, now: float, evaluation: Evaluation) -> None:
        """Evaluate this version next, in place of an older one that still waits."""
        if self._current is None:
            self._start(now, evaluation)
        elif evaluation.version != self._current.version:
            self._waiting = evaluation

    def ask(self, site: SiteRecord) -> None:
        """A site has registered: ask it, or ask it again."""
        if self._current is None:
            return
        if not site.held_out:
            self._asked.discard(site.client)
        elif site.client not in self._found:
            self._asked.add(site.client)
            self._send(site.name, EvaluationRequest(self._current.version, self._current.model))

    def forget(self, client: ClientId) -> None:
        """A site has left: nothing more is expected of it."""
        self._asked.discard(client)

    def result(self, site: SiteRecord, result: EvaluationResult) -> None:
        """Take what a site has found; what comes twice or too late changes nothing.

        Raises:
            InvalidUpdateError: It is not accepted; then nothing more is expected of the site.
        """
        current = self._current
        if current is None or result.version != current.version or site.client not in self._asked:
            return
        self._asked.discard(site.client)
        metrics = check_evaluation(result, site.held_out or 0)
        if result.samples:
            self._found[site.client] = result.samples, self._names.kept(metrics)

    def server_found(self, evaluation: Evaluation, metrics: Metrics) -> None:
        """Take what the server itself has found on the test set."""
        if self._current is not None and evaluation.version == self._current.version:
            self._server_found = metrics

    def done(self, now: float) -> DoneEvaluation | None:
        """The evaluation that is done, after which the next one starts; None means that none is."""
        current, found = self._current, self._server_found
        if current is None or found is None or (self._asked and now < self.deadline):
            return None
        metrics = {**found, **aggregate_clients(self._found, self._higher_is_better)}
        done = DoneEvaluation(current, metrics, self._found)
        waiting, self._current, self._waiting, self.deadline = self._waiting, None, None, inf
        self.last = current.version
        if waiting is not None:
            self._start(now, waiting)
        return done

    def restore(self, version: Version) -> None:
        """Note the version of a recorded evaluation."""
        self.last = version

    def _start(self, now: float, evaluation: Evaluation) -> None:
        """Ask the sites. One of which it is not known whether it holds out any is asked when it is back."""
        self._current, self.deadline = evaluation, now + self._timeout
        self._found, self._server_found = {}, None
        expected = [s for s in self._registry.sites.values() if s.present and s.held_out != 0]
        self._asked = {site.client for site in expected}
        for site in expected:
            if site.connected and site.held_out is not None:
                self._send(site.name, EvaluationRequest(evaluation.version, evaluation.model))
        if self._at_server is None:
            self._server_found = {}
        else:
            self._at_server(evaluation)
