"""Evaluates versions of the model in a thread: one at a time, of those that wait the newest."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from offbeat.core.events import Metrics
from offbeat.core.model import Model
from offbeat.net.server.effects import Evaluation, Measurements

Evaluate = Callable[[Model], Metrics]


class EvaluationThread:
    """Evaluates versions in a thread of its own. Its methods are for one thread at a time.

    Args:
        evaluate: Evaluates a model; None means that none is evaluated.
        on_done: Called, in the evaluating thread, when there is something to collect.
    """

    def __init__(self, evaluate: Evaluate | None, on_done: Callable[[], object] = lambda: None) -> None:
        self._evaluate, self._on_done = evaluate, on_done
        self._thread = ThreadPoolExecutor(1, "offbeat-evaluation")
        self._waiting: Evaluation | None = None
        self._running: tuple[Evaluation, Future[Metrics]] | None = None
        self._last = -1

    def request(self, evaluation: Evaluation) -> None:
        """Evaluate this version, in place of an older one that still waits."""
        # A version that nobody evaluates is not held.
        self._waiting = None if self._evaluate is None else evaluation
        self._start()

    def collect(self) -> Measurements:
        """The evaluations since the last call. Raises what the evaluation raised."""
        measurements: Measurements = []
        if self._running is not None and self._running[1].done():
            (evaluation, future), self._running = self._running, None
            measurements.append((evaluation, future.result()))
            self._last = evaluation.version
        self._start()
        return measurements

    def finish(self, evaluation: Evaluation | None) -> Measurements:
        """Finish the evaluations.

        Args:
            evaluation: A version to be evaluated at the end, unless it was the last one; None means none.

        Returns:
            The evaluations since the last call of `collect`.
        """
        self._waiting = None
        found = self._wait()
        if evaluation is not None and evaluation.version != self._last:
            self.request(evaluation)
            found += self._wait()
        return found

    def close(self) -> None:
        """Evaluate no more, not what waits either; waits for the thread."""
        self._waiting = None
        self._thread.shutdown(wait=True)

    def _start(self) -> None:
        """Evaluate what waits, if nothing is being evaluated."""
        if self._evaluate is None or self._waiting is None or self._running is not None:
            return
        evaluation, self._waiting = self._waiting, None
        self._running = evaluation, self._thread.submit(self._evaluate, evaluation.model)
        self._running[1].add_done_callback(lambda _: self._on_done())

    def _wait(self) -> Measurements:
        if self._running is not None:
            self._running[1].exception()
        return self.collect()
