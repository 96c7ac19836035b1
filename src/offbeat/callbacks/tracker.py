"""Base of the trackers: the values that they record of a run, their names, and how a run ends."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from json import dumps
from math import nan
from typing import Any, ClassVar, Literal, Protocol

import yaml

from offbeat.callbacks.callback import Callback, LiveRun
from offbeat.core.errors import RunError, UsageError, reason_of
from offbeat.core.extras import missing_extra
from offbeat.core.metric_names import CLIENTS, finite
from offbeat.core.model import Model
from offbeat.documents import read_text
from offbeat.runs.evaluation_log import EvaluationLog
from offbeat.runs.own_files import write_own
from offbeat.runs.schema import Metric

Status = Literal["finished", "failed", "killed"]
_LONGEST = 1000  # bytes of a file with an identifier
Scalar = bool | int | float | str

OTHERS = frozenset({
    "title", "about", "algorithm", "algorithms", "seed", "seeds", "clients", "metric", "target", "baseline",
    "scales", "callbacks",
})  # fmt: skip
"""Keys of a recipe that are no hyper-parameters of one run, or are recorded as something else."""


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        status: "killed" means interrupted.
        reason: The stop reason, or the error.
        best: Best value of each metric, by name.
    """

    status: Status
    reason: str
    best: Mapping[str, float]


class TrackedRun(Protocol):
    """Where a tracker records one run."""

    def log(self, metrics: Metric) -> None:
        """Record an evaluation; one that has been recorded before stays one point."""

    def end(self, ending: Ending) -> None:
        """Record the end, and close."""


class RunTracker(Callback, ABC):
    """Base of the trackers, which are frozen dataclasses of options; it keeps the runs that go on."""

    library: ClassVar[str | None] = None
    """The library that it needs, and the extra of Offbeat that installs it."""

    _open: dict[int, tuple[TrackedRun, EvaluationLog]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_open", {})

    @classmethod
    def require_library(cls) -> None:
        """Raises `UsageError` where the tracker's library is not installed; imports nothing."""
        if cls.library is not None:
            found = find_spec(cls.library)
            if found is None or found.origin is None:
                # A folder of that name, such as W&B's own, counts as a package without origin.
                raise missing_extra(cls.library, cls.library)

    @abstractmethod
    def open(self, run: LiveRun) -> TrackedRun:
        """Begin to record a run with its settings, or go on; it has the evaluations of `run.past` once."""

    def on_start(self, run: LiveRun) -> None:
        self.require_library()
        evaluations = EvaluationLog(higher_is_better=run.higher_is_better)
        for metrics in run.past:
            evaluations.restore(metrics)
        self._open[id(run)] = self.open(run), evaluations

    def on_evaluation(self, run: LiveRun, metrics: Metric, model: Model) -> None:
        if id(run) in self._open:
            # A run that could not be opened has been reported and is not tracked.
            tracked, evaluations = self._open[id(run)]
            evaluations.restore(metrics)
            tracked.log(metrics)

    def on_end(self, run: LiveRun, reason: str, model: Model) -> None:
        self._end(run, "finished", reason)

    def on_exception(self, run: LiveRun, error: BaseException) -> None:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        self._end(run, "failed" if isinstance(error, Exception) else "killed", text)

    def _end(self, run: LiveRun, status: Status, reason: str) -> None:
        if id(run) in self._open:
            tracked, evaluations = self._open.pop(id(run))
            tracked.end(Ending(status, reason, evaluations.best_metrics))


def run_name(run: LiveRun) -> str:
    """Label and seed: "fedbuff seed 0"."""
    return f"{run.label} seed {run.seed}"


def folder_name(run: LiveRun) -> str:
    """The label as one part of a path; a run's record, which may come from others, has any label."""
    return re.sub(r"[/\\\0]|^\.", "_", run.label)


def values(metrics: Metric) -> dict[str, float]:
    """The metrics of an evaluation by name, as they are read from a run's directory: NaN for infinity too."""
    return {name: nan if finite(value) is None else value for name, value in metrics.found.items()}


def points(metrics: Metric) -> dict[str, float]:
    """The values of an evaluation as trackers show them; they group names by the part before a slash.

    Returns:
        Metrics by name, "clients/accuracy" for "clients.accuracy"; "run/t" in seconds of the run's clock,
        "run/tasks", "run/bytes_up" and "run/bytes_down".

    Raises:
        RunError: Two names differ only in characters that `legal` replaces.
    """
    found = {f"run/{name}": getattr(metrics, name) for name in ("t", "tasks", "bytes_up", "bytes_down")}
    for name, value in values(metrics).items():
        if (shown := legal(name)) in found:
            raise RunError(f'metric "{name}": another one is recorded as "{shown}" too; give it another name')
        found[shown] = value
    return found


def best_points(ending: Ending) -> dict[str, float]:
    """The best values, "best/accuracy"."""
    return {f"best/{legal(name)}": value for name, value in ending.best.items()}


def legal(name: str) -> str:
    """A name of letters, digits, "_", "-", "." and "/", which all trackers take; else a character is "_"."""
    start = CLIENTS if name.startswith(CLIENTS) else ""
    return start.replace(".", "/") + re.sub(r"[^\w./-]", "_", name.removeprefix(start))


def settings(run: LiveRun) -> dict[str, Any]:
    """Settings on which a run's results depend: seed, clients, algorithm, and the parts of its recipe."""
    recipe = {key: value for key, value in (run.recipe or {}).items() if key not in OTHERS}
    beside = {"label": run.label, "seed": run.seed, "clients": run.clients}
    return {**beside, "algorithm": dict(run.algorithm), **recipe, "versions": dict(run.versions)}


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """The values of nested mappings by dotted key; a list is JSON, None is left out.

    >>> flat({"training": {"lr": 0.1, "decay": None}, "world": {"seconds_per_step": [1, 2]}})
    {'training.lr': 0.1, 'world.seconds_per_step': '[1, 2]'}
    """
    scalars: dict[str, Scalar] = {}
    for key, value in tree.items():
        match value:
            case Mapping():
                scalars |= flat(value, f"{prefix}{key}.")
            case bool() | int() | float() | str():
                scalars[f"{prefix}{key}"] = value
            case list() | tuple():
                scalars[f"{prefix}{key}"] = dumps(value, default=str)
            case _ if value is not None:
                scalars[f"{prefix}{key}"] = str(value)
    return scalars


def no_directory(option: str) -> UsageError:
    """The error for a run without a directory, where a tracker writes files."""
    return UsageError(f"the run has no directory for {option}: give {option}, or the run's directory (out)")


def kept_id(run: LiveRun, file: str) -> str | None:
    """The identifier that an earlier process has kept in a file of the run's directory.

    Raises:
        RunError: The file has none.
    """
    path = run.directory and run.directory / file
    if not path or not path.exists():
        return None
    try:
        identifier = read_text(path, _LONGEST).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read: {reason_of(error)}; delete it") from None
    # It becomes part of names of files.
    if not re.fullmatch(r"[\w-]+", identifier, re.ASCII):
        raise RunError(f"{path} holds no identifier of a run: delete it")
    return identifier


def keep_id(run: LiveRun, file: str, identifier: str) -> None:
    """Keep an identifier for the process that resumes the run."""
    if run.directory is not None:
        write_own(run.directory / file, f"{identifier}\n")


def recipe_text(run: LiveRun) -> str | None:
    """The recipe as YAML; None for a run that is started from Python."""
    if run.recipe is None:
        return None
    text: str = yaml.safe_dump(dict(run.recipe), sort_keys=False, allow_unicode=True)
    return text
