"""Presentation of a run in a notebook, the same for one in memory and a recorded one."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from offbeat.core.errors import DamageError
from offbeat.core.journal import Row
from offbeat.runs.summary import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RunFacts(Protocol):
    """A run's name and settings, and its journal."""

    @property
    def label(self) -> str:
        """Name of the run in tables and figures."""

    @property
    def seed(self) -> int:
        """The run's seed."""

    @property
    def clients(self) -> int:
        """Number of clients."""

    @property
    def higher_is_better(self) -> Mapping[str, bool]:
        """Whether more is better of the metrics of which the run's learner said so, by name."""

    def client_names(self) -> dict[int, str]:
        """Names of the clients by number; empty where they have numbers only."""

    def rows(self, kind: str | None = None) -> Iterator[Row]:
        """Journal rows in order; `kind` is "event" or "command", None means both."""


class RunView(RunFacts, Protocol):
    """A run as figures and tables see it: `Run` and `RunRecord`."""

    @property
    def duration(self) -> float:
        """Seconds of the run's clock."""

    @property
    def served(self) -> bool:
        """Whether a server made it, whose time is real."""

    def from_begin(self) -> Self:
        """The run with its times from the moment that it began."""

    @property
    def stop_reason(self) -> str | None:
        """Why the run ended."""

    @property
    def path(self) -> Path | None:
        """The run's directory."""

    @property
    def summary(self) -> Summary | None:
        """The run in numbers, if it has finished."""

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The evaluations as flat mappings."""


class Presentation:
    """Presentation of a run in a notebook.

    Figure and frames are made by `offbeat.notebook`, which builds on the runs and is imported when it is
    asked for.
    """

    @property
    def served(self) -> bool:
        """Whether a server made it, whose time is real."""
        return False

    def from_begin(self) -> Self:
        """The run with its times from the moment that it began: a simulation begins with its clock."""
        return self

    def __repr__(self: RunView) -> str:
        """The run in a line, without its tensors and its journal."""
        try:
            summary, seconds = self.summary, self.from_begin().duration
        except DamageError as error:
            return f"<{type(self).__name__} {self.label}: {error}>"
        facts = [f"seed {self.seed}", f"clients {self.clients}"]
        if summary is not None:
            facts += [f"versions {summary.versions}", f"client tasks {summary.tasks}"]
            found = {"accuracy": summary.accuracy, **summary.metrics, "loss": summary.loss}
            facts += [f"{name} {value:.4g}" for name, value in found.items() if value is not None]
        facts.append(f"{seconds:.4g} s")
        told = [", ".join(facts), self.stop_reason, str(self.path or "")]
        return f"<{type(self).__name__} {self.label}: {'; '.join(filter(None, told))}>"

    def plot(self: RunView, metric: str | None = None) -> "Figure":
        """Draw a metric against time, above the clients' timeline of the start of the run.

        Args:
            metric: A metric that was evaluated. None means the accuracy, else the first metric, else the
                loss; of a run without evaluations only the clients are drawn.

        Returns:
            A matplotlib figure, which a notebook shows; `figure.savefig("run.pdf")` writes it.

        Raises:
            UsageError: The metric was not evaluated.
        """
        return import_module("offbeat.notebook.figure").draw_run(self, metric)  # type: ignore[no-any-return]

    def to_pandas(self: RunView) -> Any:
        """Convert the run to data frames: see `offbeat.notebook.frames.RunFrames`.

        Raises:
            UsageError: pandas is not installed.
        """
        return import_module("offbeat.notebook.frames").to_frames(self)

    def _repr_html_(self: RunView) -> str:
        """The run in a notebook: its numbers and its figure."""
        return import_module("offbeat.notebook.html").to_html(self)  # type: ignore[no-any-return]
