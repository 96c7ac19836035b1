"""The best version of a run's model by one metric, and the file that it is kept in."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from offbeat.core.errors import RunError, UsageError, reason_of
from offbeat.core.layout import Layout
from offbeat.core.metric_names import NamedMetric, finite
from offbeat.core.model import Model
from offbeat.runs.damage import reading
from offbeat.runs.durable_files import sync_directory
from offbeat.runs.files import read_file, read_model, write_tensors
from offbeat.runs.schema import BEST, NEW_BEST, Metric, ModelChoice


class BestModel:
    """The version with the best finite value of a metric so far; of equal ones the first.

    The file holds it by tensor names, with metadata: `metric`, `value`, `version` and `t`, its time. A new
    one is beside it before the evaluation that found it becomes durable, and takes its place after; so a run
    that is resumed has the best version of its recorded evaluations, whenever it was interrupted.

    Args:
        metric: The metric.
        directory: The run's directory. None means that the model stays in memory.
        recorded: Version and time of the evaluations that the run has recorded.

    Attributes:
        model: The best version, complete, where it is in memory: until it is written to a directory.

    Raises:
        UsageError: The directory has the best version by another metric.
        RunError: A newer file, which is left of an interrupted run, cannot be put in its place or deleted.
    """

    def __init__(
        self, metric: NamedMetric, directory: Path | None, recorded: Iterable[tuple[int, float]] = ()
    ) -> None:
        self.model: Model | None = None
        self._metric, self._path = metric, None if directory is None else directory / BEST
        self._value: float | None = None
        self._metadata: dict[str, str] = {}
        # Whether a newer file lies beside the published one.
        self._waiting = False
        if self._path is not None and self._new.exists():
            found = read_file(self._new)[1]
            if (found.get("version"), found.get("t")) in {(str(version), str(t)) for version, t in recorded}:
                self._waiting = True
                self.publish()
            else:
                with self._changing_files():
                    self._new.unlink()
        if self._path is not None and self._path.exists():
            metadata = read_file(self._path)[1]
            if metadata.get("metric") != metric.name:
                raise UsageError(
                    f"{self._path} is the best model by {metadata.get('metric')}: give evaluate.keep_best = "
                    f"{metadata.get('metric')!r}, or move the file away"
                )
            with reading(self._path):
                self._value = float(metadata["value"])

    @property
    def _new(self) -> Path:
        assert self._path is not None
        return self._path.with_name(NEW_BEST)

    def beside(self, directory: Path) -> "BestModel":
        """The same in another directory, which has a copy of the file. Errors: as of the class."""
        return BestModel(self._metric, directory)

    def improves(self, row: Metric) -> bool:
        """Whether an evaluation is better than all before it."""
        value = finite(row.found.get(self._metric.name))
        return value is not None and (self._value is None or self._metric.better(value, self._value))

    def keep(self, row: Metric, model: Model) -> None:
        """Keep the version of an evaluation that improves."""
        self.model, self._value = model, float(row.found[self._metric.name])
        named = {"metric": self._metric.name, "value": self._value, "version": row.version, "t": row.t}
        self._metadata = {key: str(value) for key, value in named.items()}

    def write(self) -> None:
        """Write a new version beside the file. Raises `RunError` where it cannot."""
        if self._path is None or self.model is None:
            return
        with self._changing_files():
            write_tensors(self._new, self.model.state_dict(), self._metadata)
            sync_directory(self._path.parent)
        self.model, self._waiting = None, True

    def publish(self) -> None:
        """Let the new file take the old one's place: its evaluation is durable. Raises `RunError`."""
        if self._path is None or not self._waiting:
            return
        self._waiting = False
        with self._changing_files():
            self._new.replace(self._path)
            sync_directory(self._path.parent)

    @contextmanager
    def _changing_files(self) -> Iterator[None]:
        """Raise what the system refuses as a `RunError`."""
        try:
            yield
        except OSError as error:
            raise RunError(f"cannot write the best model to {self._path}: {reason_of(error)}") from None


def choose_model(choice: ModelChoice, final: Model, directory: Path) -> Model:
    """The model that is chosen; the final one too where no evaluation of the run had a finite value.

    Args:
        choice: Which.
        final: The final model.
        directory: The run's directory.
    """
    return final if choice == "final" else read_best(directory, final.layout) or final


def read_best(directory: Path, layout: Layout) -> Model | None:
    """The best version that a run's directory holds; None where it holds none.

    Args:
        directory: The run's directory.
        layout: The layout of the run's model.
    """
    path = directory / BEST
    return read_model(path, layout) if path.exists() else None
