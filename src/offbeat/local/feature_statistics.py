"""Federated statistics: counts, means, deviations, quantiles and label shares of features at many sites.

They are gathered by an ordinary run of three versions, in which a task's model is an array for each quantity
and its local training fills them in. All that a client sends follows from its sketch (`feature_sketch.py`)
and from the model: so a server that asks for anything else learns what is in the sketch, and no more. The
server weighs the answers by the sites' numbers of samples, as it weighs updates.

| version | what each site sends of each feature                                               |
|---------|------------------------------------------------------------------------------------|
| 1       | the share that is present, times its mean; the share of each label                  |
| 2       | squared distances from the mean of all sites, and of its own mean from that mean    |
| 3       | a histogram of `BINS` cells, over four deviations on either side of that mean, and |
|         | by how much the share of values below each cell's end may differ from the truth    |
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offbeat.core.errors import UsageError
from offbeat.data.column_order import NO_COLUMNS
from offbeat.data.columns import Columns
from offbeat.data.dataset import Dataset
from offbeat.data.federated import FederatedData
from offbeat.local.client_task import ClientTask
from offbeat.local.errors import place_of
from offbeat.local.feature_sketch import (
    REACH,
    FeatureSketch,
    Floats,
    rounded_off,
    sketch_digest,
    told_counts,
)
from offbeat.local.loop_learner import LoopLearner
from offbeat.local.loop_model import model_of

BINS = 128
"""Cells of a histogram."""
VERSIONS = 3
"""Versions of a run that gathers statistics."""
APART = 0.25
"""Share of a feature's variance that lies between sites, above which they are said to lie far apart."""
LARGEST = 1e18
"""Largest value of a feature: squares of distances must stay within float32."""
_EDGES = np.linspace(-REACH, REACH, BINS + 1)
_SHOWN = 10  # features in a sentence
_BATCH = 2**20  # samples of a step: a task mostly has one step


@dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """What is known of the features of all sites together.

    Attributes:
        samples: Number of samples.
        present: Share of the samples that have each feature, [features].
        mean: Mean of each feature where it is present, [features]; NaN where it never is.
        std: Standard deviation, [features].
        between: Share of each feature's variance that lies between the sites' means, in [0, 1], [features].
        labels: Share of each label, [classes]; empty without classes, and where no site told its labels.
        histogram: Share of each feature's values in each cell, [features, bins].
        doubt: The most by which the share of values below the end of each cell may differ from the truth,
            [features, bins].
        names: Names of the features; their numbers where they have none.
    """

    samples: int
    present: Floats
    mean: Floats
    std: Floats
    between: Floats
    labels: Floats
    histogram: Floats
    doubt: Floats
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: Mapping[str, Any], samples: int, columns: Columns = NO_COLUMNS) -> "FeatureStatistics":
        """Read the last version of a run that gathered statistics.

        Args:
            model: Its arrays by name.
            samples: Number of samples of all sites.
            columns: Names of the columns of its data.

        Raises:
            UsageError: The model is another one.
        """
        arrays = {name: np.asarray(value, np.float64) for name, value in model.items()}
        features, classes = (np.size(arrays.get(name, 0.0)) for name in ("present", "labels"))
        if {name: array.shape for name, array in arrays.items()} != {
            name: array.shape for name, array in _empty(features, classes).items()
        }:
            raise UsageError("the model is not one of statistics: the run has trained another one")
        if round(float(arrays["stage"][0])) < VERSIONS:
            raise UsageError(f"the statistics are not complete: the run has ended before version {VERSIONS}")
        present, mean = arrays["present"], _mean(arrays)
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = arrays["squares"] / present
            between = np.nan_to_num(np.clip(arrays["between"] / arrays["squares"], 0.0, 1.0))
            shares, doubt = (arrays[name] / present[:, None] for name in ("histogram", "doubt"))
        labels = arrays["labels"] if arrays["labels"].any() else np.zeros(0)
        names = columns.get("x", tuple(map(str, range(features))))
        return cls(samples, present, mean, np.sqrt(variance), between, labels, shares, doubt, names)

    @property
    def missing(self) -> Floats:
        """Share of the samples that lack each feature, [features]."""
        return 1.0 - self.present

    def quantile(self, q: float) -> Floats:
        """The quantile q in [0, 1] of each feature, [features]; NaN where `quantile_range` has no end.

        Values beyond the histogram count at its ends, so an outer quantile can be too near to the mean.
        """
        known = np.isfinite(self.quantile_range(q)).all(0)
        found = [self._at(feature, q) for feature in range(len(self.mean))]
        return np.where(known, found, np.nan)

    def quantile_range(self, q: float) -> Floats:
        """Between which values the quantile q in [0, 1] of each feature lies, [2, features].

        Sites tell of groups of samples only. An end is infinite where the groups are too large to tell it.
        """
        return np.array([self._range(feature, q) for feature in range(len(self.mean))]).T.reshape(2, -1)

    def resolution(self, q: float) -> Floats:
        """The most by which the quantile q of each feature may be wrong, [features]; NaN where unknown."""
        most: Floats = np.abs(self.quantile_range(q) - self.quantile(q)).max(0)
        return most

    def untold(self, quantiles: Sequence[float]) -> str:
        """Which of these quantiles are not known, and why, in a sentence; "" where all are."""
        features = np.flatnonzero(self.present > 0)
        unknown = {q: features[np.isnan(self.quantile(q)[features])] for q in quantiles}
        found = [f"q{100 * q:g} of {len(own)}" for q, own in unknown.items() if len(own)]
        if not found:
            return ""
        return (
            f"not told, of {len(features)} features: {', '.join(found)}: there the sites have fewer samples "
            "than their policies let them tell of (min_samples)"
        )

    def _at(self, feature: int, q: float) -> float:
        edges, below, _ = self._distribution(feature)
        return float(np.interp(q * below[-1], below, edges)) if below[-1] > 0 else float("nan")

    def _range(self, feature: int, q: float) -> tuple[float, float]:
        edges, below, doubt = self._distribution(feature)
        if not self.std[feature] > 0:
            # All values that sites tell of are equal.
            return (edges[0], edges[-1]) if doubt.max() <= min(q, 1 - q) else (-np.inf, np.inf)
        # The outer edges bound nothing: there are values beyond them.
        low = edges[1:-1][(below + doubt)[1:-1] <= q]
        high = edges[1:-1][(below - doubt)[1:-1] >= q]
        return max(low, default=-np.inf), min(high, default=np.inf)

    def _distribution(self, feature: int) -> tuple[Floats, Floats, Floats]:
        """Edges of the cells of a feature, the share of its values below each, and the doubt in that."""
        edges = self.mean[feature] + self.std[feature] * _EDGES
        below = np.concatenate([[0.0], np.cumsum(self.histogram[feature])])
        return edges, below, np.concatenate([[0.0], self.doubt[feature]])

    @property
    def far_apart(self) -> list[int]:
        """Features whose sites lie far apart: more than `APART` of the variance is between their means."""
        return [int(feature) for feature in np.flatnonzero(self.between > APART)]

    @property
    def apart_text(self) -> str:
        """The features whose sites lie far apart, with the share of their variance, in a sentence."""
        found = [f"{self.names[feature]} ({100 * self.between[feature]:.0f} %)" for feature in self.far_apart]
        shown = ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if found[_SHOWN:] else "")
        return f"sites lie far apart in features {shown}: so much of their variance is between sites"


class StatisticsLearner(LoopLearner):
    """Clients that tell statistics of their features in place of an update.

    Args:
        data: The clients' samples: one tensor of floating-point numbers [N, …] for all; NaN is missing. For a
            server: data without clients, with `features`.
        features: Number of features, for a server. With clients it is that of their data.
        classes: Number of classes, for a server, and for a site in its run. None means that of the data.
        rounded: Whether each number that is sent is rounded to `DIGITS` significant digits.
        labels: Whether the shares of the labels are sent.
        least: Fewest samples that a client tells anything of, as for `FeatureSketch.of`. A feature that
            fewer of its samples have counts as missing, one that fewer lack as present.

    Raises:
        UsageError: The samples have no features that are numbers, or a value is infinite or too large.
    """

    def __init__(
        self,
        data: FederatedData,
        features: int | None = None,
        classes: int | None = None,
        *,
        rounded: bool = False,
        labels: bool = True,
        least: int = 1,
    ) -> None:
        self.data = data
        if data.clients:
            features, classes = _features(data), classes or getattr(data.train, "classes", None)
            _check_sizes(data)
        elif features is None:
            raise UsageError("a server's statistics need the number of features: give data.sample_shape")
        super().__init__(
            _Loop(data, rounded, labels, least),
            model_of(_empty(features, classes or 1)),
            [data.samples(client) for client in range(data.clients)] or [0],
            batch_size=_BATCH,
        )

    @property
    def columns(self) -> Columns:
        """Names of the columns of the data's tables, in their order."""
        return self.data.columns

    def with_columns(self, columns: Columns) -> "StatisticsLearner":
        """This learner, with the columns of its data in another order, as `FederatedData.with_columns`."""
        other = copy(self)
        other.data = self.data.with_columns(columns)
        assert isinstance(self._train, _Loop)
        other._train = replace(self._train, data=other.data)
        return other

    @property
    def told_digest(self) -> str:
        """Digest of all that a site tells, whatever its server asks, for comparison with another run's."""
        assert isinstance(self._train, _Loop)
        sketches, labels = self._train.told(0)
        return sketch_digest(self.samples(0), labels, sketches)


@dataclass(frozen=True, eq=False)
class _Loop:
    """The local training of a task: it replaces what is in the model's arrays by what this client has."""

    data: FederatedData
    rounded: bool
    labels: bool
    least: int
    _told: dict[int, tuple[list[FeatureSketch], Floats]] = field(default_factory=dict, init=False)

    def __call__(self, task: ClientTask) -> None:
        base = {name: np.asarray(array, np.float64) for name, array in task.arrays().items()}
        sketches, labels = self.told(task.client if self.data.clients > 1 else 0)
        arrays = dict(base)
        match round(float(base["stage"][0])):
            case 0:
                arrays |= _sums(sketches, labels, len(base["labels"]))
            case 1:
                arrays |= _squares(sketches, _mean(base))
            case 2:
                arrays |= _histograms(sketches, base)
        arrays["stage"] = base["stage"] + 1
        for _ in task.steps():
            pass
        task.submit({name: array.astype(np.float32) for name, array in arrays.items()})

    def told(self, client: int) -> tuple[list[FeatureSketch], Floats]:
        """What a client tells: the sketches of its features, and the shares of its labels.

        Those of a single client, a site, are kept for the next task.
        """
        if client in self._told:
            return self._told[client]
        rows, train = self.data.client_indices(client), self.data.train
        assert isinstance(train, Dataset)
        columns = train.x.flatten(1).T
        sketches = [
            FeatureSketch.of(column[rows].double().numpy(), self.least, rounded=self.rounded)
            for column in columns
        ]
        told = sketches, self._labels(train, rows)
        if self.data.clients == 1:
            self._told[client] = told
        return told

    def _labels(self, train: Dataset, rows: Tensor) -> Floats:
        """Shares of all classes that the client's own data have; none where they stay here."""
        y = train.y
        if not self.labels or y is None or y.dtype != torch.int64 or not len(rows):
            return np.zeros(0)
        counts = told_counts(np.bincount(y[rows].flatten().numpy()).astype(np.float64), self.least)
        shares = counts / len(rows)
        return np.array([rounded_off(share) for share in shares]) if self.rounded else shares


def _sums(sketches: list[FeatureSketch], labels: Floats, classes: int) -> dict[str, Floats]:
    present, sums = np.array([(s.present, s.present * s.mean) for s in sketches]).T
    shares = np.zeros(classes)
    if classes > 1:
        shares[: len(labels)] = labels[:classes]
    return {"present": present, "sums": sums, "labels": shares}


def _squares(sketches: list[FeatureSketch], mean: Floats) -> dict[str, Floats]:
    present, own, variance = np.array([(s.present, s.mean, s.variance) for s in sketches]).T
    between = np.where(present > 0, present * (own - mean) ** 2, 0.0)
    return {"squares": present * variance + between, "between": between}


def _histograms(sketches: list[FeatureSketch], base: dict[str, Floats]) -> dict[str, Floats]:
    histogram, doubt = np.zeros_like(base["histogram"]), np.zeros_like(base["doubt"])
    with np.errstate(invalid="ignore", divide="ignore"):
        mean, std = _mean(base), np.sqrt(base["squares"] / base["present"])
    for n, sketch in enumerate(sketches):
        if sketch.present:
            inner = mean[n] + std[n] * _EDGES[1:-1]
            histogram[n] = sketch.present * np.diff(sketch.below(inner), prepend=0.0, append=1.0)
            doubt[n, :-1] = sketch.present * sketch.doubt(inner)
    return {"histogram": histogram, "doubt": doubt}


def _empty(features: int, classes: int) -> dict[str, npt.NDArray[np.float32]]:
    """The arrays of a run's first model."""
    shapes: dict[str, tuple[int, ...]] = {
        "stage": (1,), "labels": (classes,), "present": (features,), "sums": (features,),
        "squares": (features,), "between": (features,), "histogram": (features, BINS),
        "doubt": (features, BINS),
    }  # fmt: skip
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def _mean(arrays: dict[str, Floats]) -> Floats:
    """The mean of each feature over all sites; NaN where no sample has it."""
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Floats = arrays["sums"] / arrays["present"]
    return mean


def _features(data: FederatedData) -> int:
    """The number of features of a sample."""
    train = data.train
    x = train.x if isinstance(train, Dataset) else None
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise UsageError(
            "statistics are of features that are numbers: give data whose samples are one tensor of "
            "floating-point numbers, [samples, features]"
        )
    return int(x[0].numel())


def _check_sizes(data: FederatedData) -> None:
    """Raises `UsageError` for a value of a client that is infinite, or whose square float32 cannot hold."""
    train = data.train
    assert isinstance(train, Dataset)
    wrong = (train.x.abs() > LARGEST).reshape(len(train), -1)
    if not bool(wrong.any()):
        return
    for client in range(data.clients):
        for row in data.client_indices(client)[wrong[data.client_indices(client)].any(1)].tolist():
            place = place_of(train, row, lambda x: x.abs() > LARGEST)
            value = float(train.x[row].flatten()[int(wrong[row].int().argmax())])
            named = f"client {data.names[client]!r}" if data.names else f"client {client}"
            raise UsageError(
                f"{named}: {data.name_of(client, row)} has {value:g}{place}, and statistics are of numbers "
                f"up to {LARGEST:g}: correct it, or give NaN where the value is missing"
            )
