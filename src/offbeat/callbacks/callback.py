"""The interface of users' code that follows a run while it goes on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offbeat.core.model import Model
from offbeat.runs.schema import Metric


@dataclass(frozen=True)
class LiveRun:
    """A run that goes on, as its callbacks see it.

    Attributes:
        label: What the run is called.
        seed: The run's seed.
        algorithm: The algorithm's name, under "name", and its hyper-parameters.
        clients: Number of clients; on a network the number with which the run begins.
        recipe: The recipe it is run from, if any.
        directory: The run's directory; None means that it stays in memory.
        versions: Versions of the code: of "offbeat", "torch" and "python".
        higher_is_better: Whether more is better of the metrics of which the learner said so, by name.
        past: The evaluations that were recorded before now, in order: those of a run that is resumed.
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
    """Methods that are called while a run goes on; here each does nothing. Override those that are wanted.

    In a simulation the methods are called in the process of the run, between two of its events, and an
    error of theirs fails the run, which can be resumed. On a network they are called in a thread of their
    own, in order, and an error of theirs is logged while the run goes on.

    A resumed run calls `on_start` again, with what was evaluated before in `LiveRun.past`; an evaluation
    after the last checkpoint of a run that was killed is made, and told, again.
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
