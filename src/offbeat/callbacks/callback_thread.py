"""A run's callbacks, called in a thread of their own."""

import logging
from concurrent.futures import Future, ThreadPoolExecutor

from offbeat.callbacks.callback_list import CallbackList
from offbeat.core.buffers import Finalizer
from offbeat.core.model import Model
from offbeat.runs.schema import Metric

log = logging.getLogger(__name__)


class CallbackThread:
    """Calls callbacks in order, so that their caller never waits; calls to come wait in memory.

    What a method of a callback raises is logged the first time, and changes nothing in the run.

    Args:
        callbacks: The callbacks, which know the run.
        complete: Makes of a version the model that they are given.
    """

    def __init__(self, callbacks: CallbackList, complete: Finalizer) -> None:
        self._callbacks, self._complete = callbacks, complete
        self._thread = ThreadPoolExecutor(1, "offbeat-callbacks")
        self._failed: set[str] = set()

    def on_start(self) -> None:
        """The run starts, or goes on."""
        self._submit("on_start")

    def on_evaluation(self, metrics: Metric, version: Model) -> None:
        """A version has been evaluated; it is completed in the thread."""
        self._thread.submit(self._evaluation, metrics, version).add_done_callback(_log_error)

    def on_end(self, reason: str, model: Model) -> None:
        """The run has finished."""
        self._submit("on_end", reason, model)

    def on_exception(self, error: BaseException) -> None:
        """The run has failed or was interrupted."""
        self._submit("on_exception", error)

    def close(self) -> None:
        """Wait until all calls have been made."""
        self._thread.shutdown(wait=True)

    def _submit(self, method: str, *arguments: object) -> None:
        self._thread.submit(self._call, method, *arguments).add_done_callback(_log_error)

    def _evaluation(self, metrics: Metric, version: Model) -> None:
        self._call("on_evaluation", metrics, self._complete(version))

    def _call(self, method: str, *arguments: object) -> None:
        for name, failure in self._callbacks.failures(method, *arguments):
            if name not in self._failed:
                self._failed.add(name)
                log.error("%s; the run goes on", failure, exc_info=failure)


class NoCallbacks:
    """The callbacks of a run that has none: nothing is called, and no thread is needed."""

    def on_start(self) -> None:
        """Nothing is called."""

    def on_evaluation(self, metrics: Metric, version: Model) -> None:
        """Nothing is called; the version is not completed."""

    def on_end(self, reason: str, model: Model) -> None:
        """Nothing is called."""

    def on_exception(self, error: BaseException) -> None:
        """Nothing is called."""

    def close(self) -> None:
        """There is nothing to wait for."""


def _log_error(done: Future[None]) -> None:
    """Log an error that is none of the callbacks' own."""
    if (error := done.exception()) is not None:
        log.error("callbacks: %s", error, exc_info=error)
