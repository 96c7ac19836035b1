"""The meaning of a metric's name: its direction, whether it is a share, which is shown first."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, nan
from unicodedata import category

from offbeat.core.errors import UsageError

LOWER_IS_BETTER = frozenset({"loss", "perplexity", "mae", "mse", "rmse", "error"})
"""Last words of the names of metrics of which less is better, such as "calibration_error"."""

SHARES = frozenset({"accuracy", "balanced_accuracy", "f1", "auroc", "dice", "exact_match"})
"""Metrics in [0, 1] that are shown in percent."""

COLUMNS = frozenset({"t", "version", "tasks", "bytes_up", "bytes_down"})
"""Columns of an evaluation beside its metrics: no metric has such a name."""

_OTHERS = "_-.@/ "
_MARKS = frozenset({"Mn", "Mc"})  # vowels and accents of many scripts

CLIENTS = "clients."
"""Start of the names of metrics of the clients' own evaluations."""
WORST, UNDEFINED = "worst", "undefined"
QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
"""Shares of the clients below the quantiles, by their suffix to a metric's name."""
CLIENT_COUNT = CLIENTS + "count"
"""Number of clients that have evaluated."""


@dataclass(frozen=True, slots=True)
class NamedMetric:
    """A metric of evaluations.

    Attributes:
        name: Its name.
        higher_is_better: Whether a larger value is better.
    """

    name: str
    higher_is_better: bool

    @classmethod
    def of(cls, name: str, known: Mapping[str, bool] = {}) -> "NamedMetric":
        """The metric of a name; a direction in `known`, by name, comes before that of the name."""
        return cls(name, known.get(base_name(name), higher_is_better(name)))

    @property
    def is_share(self) -> bool:
        """Whether it is known to be a share in [0, 1]."""
        return base_name(self.name) in SHARES

    @property
    def scale(self) -> float:
        """Factor of the values that are shown: 100 for a share, in percent."""
        return 100.0 if self.is_share else 1.0

    @property
    def words(self) -> str:
        """The name as it is read: "balanced accuracy"."""
        return self.name.replace("_", " ")

    @property
    def unit(self) -> str:
        """The unit of the values that are shown, after a space; empty unless the metric is a share."""
        return " %" if self.is_share else ""

    @property
    def title(self) -> str:
        """Name and unit: "balanced accuracy (%)"."""
        return f"{self.words} (%)" if self.is_share else self.words

    def value_text(self, value: float) -> str:
        """A value as it is read: "62.5 %" for a share."""
        return f"{self.scale * value:.4g}{self.unit}"

    def best(self, values: Iterable[float | None]) -> float | None:
        """The best of the finite values; None where no value is finite."""
        known = [value for value in map(finite, values) if value is not None]
        return (max if self.higher_is_better else min)(known, default=None)

    def better(self, value: float, than: float, by: float = 0.0) -> bool:
        """Whether a value is better than another one by more than `by`."""
        return value - than > by if self.higher_is_better else than - value > by

    def reaches(self, value: float | None, target: float) -> bool:
        """Whether a value is finite and at the target, or better."""
        known = finite(value)
        return known is not None and self.best((known, target)) == known


def finite(value: float | None) -> float | None:
    """The value; None for NaN (a metric that is undefined) and infinity."""
    return value if value is not None and isfinite(value) else None


def check_metric_names(names: Iterable[str]) -> None:
    """Raise `UsageError` for a name that cannot be that of a metric."""
    for name in names:
        if (problem := problem_of_name(name)) is not None:
            raise UsageError(f"metric {name!r:.60} is not allowed: {problem}")


@lru_cache(1024)
def problem_of_name(name: str) -> str | None:
    """Why a name cannot be that of a metric, in words; None if it can.

    A name goes into tables, files, spreadsheets and terminals as it is, so no program may take it for more
    than words.
    """
    if not name.strip():
        return "give it a name"
    if all(c.isalnum() or c in _OTHERS or category(c) in _MARKS for c in name):
        return None
    return f"a metric's name has letters, digits and the characters {_OTHERS!r}"


def numbers(recorded: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics as they were recorded in JSON, which has null for NaN and infinity."""
    return {name: nan if value is None else value for name, value in recorded.items()}


def base_name(name: str) -> str:
    """The metric that a statistic over clients is of: "accuracy" for "clients.accuracy.p10"."""
    if not name.startswith(CLIENTS):
        return name
    base = name.removeprefix(CLIENTS)
    metric, _, statistic = base.rpartition(".")
    return metric if statistic in {WORST, *QUANTILES} else base


def is_statistic(name: str) -> bool:
    """Whether a metric is a statistic over the clients' values, or counts clients."""
    metric, _, statistic = name.removeprefix(CLIENTS).rpartition(".")
    of_clients = name.startswith(CLIENTS) and metric and statistic in {WORST, UNDEFINED, *QUANTILES}
    return name == CLIENT_COUNT or bool(of_clients)


def higher_is_better(name: str) -> bool:
    """Whether a larger value of a metric is better, by its name: not for `LOWER_IS_BETTER`."""
    return base_name(name).rpartition("_")[2] not in LOWER_IS_BETTER


def in_order(names: Iterable[str]) -> list[str]:
    """The names, each once, as they are shown: accuracy first, the loss last; then those of the clients."""

    def rank(name: str) -> tuple[bool, bool, bool, bool]:
        base = base_name(name)
        return name.startswith(CLIENTS), is_statistic(name), base == "loss", base != "accuracy"

    return sorted(dict.fromkeys(names), key=rank)


def first_shown(names: Iterable[str]) -> str:
    """The metric that is shown first: accuracy if there is one, else the first metric, else the loss."""
    return next(iter(in_order(names)), "accuracy")
