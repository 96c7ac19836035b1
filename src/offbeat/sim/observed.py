"""A recorder that passes evaluations on, once they are recorded."""

from collections.abc import Iterable

from offbeat.callbacks.callback_list import CallbackList
from offbeat.runs.best import BestModel
from offbeat.runs.schema import ClientMetric, Metric
from offbeat.sim.backend import LiveBackend
from offbeat.sim.simulation import Recorder


class ObservedRecorder:
    """A recorder that passes its evaluations to callbacks and to the best model.

    A run that repeats its past writes to another recorder meanwhile, so nothing is told of that.
    """

    def __init__(
        self, recorder: Recorder, backend: LiveBackend, callbacks: CallbackList, best: BestModel | None
    ) -> None:
        self.row = recorder.row
        self._recorder, self._backend = recorder, backend
        self._callbacks, self._best = callbacks, best

    def metric(self, metric: Metric, clients: Iterable[ClientMetric] = ()) -> None:
        """Record an evaluation, and pass it on with the model."""
        self._recorder.metric(metric, clients)
        improved = self._best if self._best is not None and self._best.improves(metric) else None
        if improved is None and not self._callbacks:
            return
        model = self._backend.completed().to("cpu")
        if improved is not None:
            improved.keep(metric, model)
        self._callbacks.on_evaluation(metric, model)
