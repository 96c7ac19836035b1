"""The interface of users' code that follows a run while it goes on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offbeat.core.model import Model
from offbeat.runs.schema import Metric


@dataclass(frozen=True)
class LiveRun:
    """A run in progress, as its callbacks see it.

    Attributes:
        label: Name of the run.
        seed: The run's seed.
        algorithm: The algorithm's name, under "name", and its hyper-parameters.
        clients: Number of clients; on a network the number with which the run begins.
        recipe: The recipe of the run, if any.
        directory: The run's directory. None means that the run stays in memory.
        versions: Versions of the code: of "offbeat", "torch" and "python".
        higher_is_better: Whether more is better, by name, for the metrics of which the learner declares it.
        past: The evaluations before a resumption, in order.
        request_stop: Ends the run; use `stop`.
    """

    label: str
    seed: int
    algorithm: Mapping[str, Any]
    clients: int
    recipe: Mapping[str, Any] | None
    directory: Path | None
    versions: Mapping[str, str]
    higher_is_better: Mapping[str, bool]
    past: tuple[Metric, ...]
    request_stop: Callable[[str], object] = field(repr=False)

    def stop(self, reason: str) -> None:
        """End the run cleanly, as a limit does; its current model is the final one.

        Args:
            reason: Why, which becomes the run's `stop_reason`.
        """
        self.request_stop(reason)


class Callback:
    """Object whose methods are called during a run. Each method does nothing; override those that you need.

    In a simulation, the methods are called in the run's process, between two of its events. An error in a
    method fails the run, which can be resumed. On a network, the methods are called in order in a separate
    thread. An error in a method is logged, and the run continues.

    A resumed run calls `on_start` again, with the earlier evaluations in `LiveRun.past`. A run that was
    killed repeats the evaluations after its last checkpoint, and calls the methods for them again.
    """

    def on_start(self, run: LiveRun) -> None:
        """The run starts, or goes on."""

    def on_evaluation(self, run: LiveRun, metrics: Metric, model: Model) -> None:
        """A version has been evaluated.

        Args:
            run: The run.
            metrics: When it was and what was found, by name in `metrics.found`.
            model: The version, complete; `model.state_dict()` has its tensors, which must not be changed.
        """

    def on_end(self, run: LiveRun, reason: str, model: Model) -> None:
        """The run has finished.

        Args:
            run: The run.
            reason: Why it ended.
            model: The final model.
        """

    def on_exception(self, run: LiveRun, error: BaseException) -> None:
        """The run has failed or was interrupted; the error is raised after this.

        Args:
            run: The run.
            error: What was raised; KeyboardInterrupt for an interruption.
        """
