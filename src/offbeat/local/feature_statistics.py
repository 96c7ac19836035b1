"""Federated statistics: counts, means, deviations, quantiles and label shares of features at many sites.

They are gathered by an ordinary run of three versions, in which a task's model is an array for each quantity
and its local training fills them in. What a site sends are means over its samples, never a sample; the server
weighs them by the sites' numbers of samples, as it weighs updates.

| version | what each site sends of each feature                                              |
|---------|-----------------------------------------------------------------------------------|
| 1       | the share that is present, and the sum per sample; the share of each label        |
| 2       | squared distances from the mean of all sites, and of its own mean from that mean   |
| 3       | a histogram of `BINS` cells, over four deviations on either side of that mean      |
"""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from math import floor, log10
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
from offbeat.local.loop_learner import LoopLearner
from offbeat.local.loop_model import model_of

BINS = 128
"""Cells of a histogram."""
REACH = 4.0
"""Deviations on either side of the mean that a histogram covers; what is beyond is in its outer cells."""
VERSIONS = 3
"""Versions of a run that gathers statistics."""
APART = 0.25
"""Share of a feature's variance that lies between sites, above which they are said to lie far apart."""
DIGITS = 3
"""Significant digits of what a site sends, where it rounds."""
LARGEST = 1e18
"""Largest value of a feature: squares of distances must stay within float32."""
_AT_A_TIME = 4096  # samples
_SHOWN = 10  # features in a sentence
_BATCH = 2**20  # samples of a step: a task mostly has one step

Floats = npt.NDArray[np.float64]


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
        names: Names of the features; their numbers where they have none.
    """

    samples: int
    present: Floats
    mean: Floats
    std: Floats
    between: Floats
    labels: Floats
    histogram: Floats
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
            shares = arrays["histogram"] / present[:, None]
        labels = arrays["labels"] if arrays["labels"].any() else np.zeros(0)
        names = columns.get("x", tuple(map(str, range(features))))
        return cls(samples, present, mean, np.sqrt(variance), between, labels, shares, names)

    @property
    def missing(self) -> Floats:
        """Share of the samples that lack each feature, [features]."""
        return 1.0 - self.present

    def quantile(self, q: float) -> Floats:
        """The quantile q in [0, 1] of each feature, [features], within its cell by linear interpolation.

        Values beyond the histogram count at its ends, so an outer quantile can be too near to the mean.
        """
        return np.array([self._quantile(feature, q) for feature in range(len(self.mean))])

    def _quantile(self, feature: int, q: float) -> float:
        mean, std = float(self.mean[feature]), float(self.std[feature])
        if not std > 0:
            return mean
        edges = mean + std * np.linspace(-REACH, REACH, BINS + 1)
        below = np.concatenate([[0.0], np.cumsum(self.histogram[feature])])
        return float(np.interp(q * below[-1], below, edges))

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
        least: Fewest samples that a client tells anything of. A feature that fewer of its samples have counts
            as missing; a label or a cell of the histogram with fewer counts as empty.

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


@dataclass(frozen=True, eq=False)
class _Loop:
    """The local training of a task: it replaces what is in the model's arrays by what this client has."""

    data: FederatedData
    rounded: bool
    labels: bool
    least: int

    def __call__(self, task: ClientTask) -> None:
        base = {name: np.asarray(array, np.float64) for name, array in task.arrays().items()}
        client = task.client if self.data.clients > 1 else 0
        arrays = dict(base)
        match round(float(base["stage"][0])):
            case 0:
                arrays |= self._sums(client, len(base["labels"]))
            case 1:
                arrays |= self._squares(client, _mean(base))
            case 2:
                arrays |= self._histogram(client, base)
        if self.rounded:
            arrays = {
                name: array if array is base[name] else rounded_off(array) for name, array in arrays.items()
            }
        arrays["stage"] = base["stage"] + 1
        for _ in task.steps():
            pass
        task.submit({name: array.astype(np.float32) for name, array in arrays.items()})

    def _sums(self, client: int, classes: int) -> dict[str, Floats]:
        present, sums, labels = self._present(client), np.zeros(1), np.zeros(classes)
        for x, y in _pieces(self.data, client):
            sums = sums + np.nansum(x, 0)
            if self.labels and classes > 1 and y is not None and y.dtype == torch.int64:
                labels += np.bincount(y.flatten().numpy(), minlength=classes)[:classes]
        count = self.data.samples(client)
        labels = np.where(labels < self.least, 0.0, labels)
        return {
            "present": present / count,
            "sums": np.where(present, sums, 0.0) / count,
            "labels": labels / count,
        }

    def _squares(self, client: int, mean: Floats) -> dict[str, Floats]:
        present, distance, squares = self._present(client), np.zeros(1), np.zeros(1)
        for x, _ in _pieces(self.data, client):
            distance = distance + np.nansum(x - mean, 0)
            squares = squares + np.nansum((x - mean) ** 2, 0)
        count = self.data.samples(client)
        between = np.where(present, distance**2 / np.maximum(present, 1), 0.0)
        return {"squares": np.where(present, squares, 0.0) / count, "between": between / count}

    def _histogram(self, client: int, base: dict[str, Floats]) -> dict[str, Floats]:
        present, mean = self._present(client), _mean(base)
        with np.errstate(invalid="ignore", divide="ignore"):
            std = np.sqrt(base["squares"] / base["present"])
        counts = np.zeros_like(base["histogram"])
        for x, _ in _pieces(self.data, client):
            with np.errstate(invalid="ignore", divide="ignore"):
                place = (x - mean) / std
            cell = np.clip(np.floor((np.nan_to_num(place) + REACH) / (2 * REACH) * BINS), 0, BINS - 1)
            for feature in range(x.shape[1]):
                own = cell[~np.isnan(x[:, feature]), feature].astype(np.int64)
                counts[feature] += np.bincount(own, minlength=BINS)
        told = np.where((counts < self.least) | (present[:, None] == 0), 0.0, counts)
        return {"histogram": told / self.data.samples(client)}

    def _present(self, client: int) -> Floats:
        """Number of samples that have each feature; 0 where these are too few to tell of."""
        present = sum(((~np.isnan(x)).sum(0) for x, _ in _pieces(self.data, client)), np.zeros(1))
        return np.where(present < self.least, 0.0, present)


def rounded_off(values: Floats, digits: int = DIGITS) -> Floats:
    """Values rounded to a number of significant digits."""
    made = [round(v, digits - 1 - floor(log10(abs(v)))) if v and np.isfinite(v) else v for v in values.flat]
    return np.array(made, np.float64).reshape(values.shape)


def _empty(features: int, classes: int) -> dict[str, npt.NDArray[np.float32]]:
    """The arrays of a run's first model."""
    shapes: dict[str, tuple[int, ...]] = {
        "stage": (1,), "labels": (classes,), "present": (features,), "sums": (features,),
        "squares": (features,), "between": (features,), "histogram": (features, BINS),
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


def _pieces(data: FederatedData, client: int) -> Iterator[tuple[Floats, Any]]:
    """A client's features [n, features] and targets, some samples at a time."""
    rows = data.client_indices(client)
    for start in range(0, len(rows), _AT_A_TIME):
        batch = data.train.gather(rows[start : start + _AT_A_TIME])
        x, y = batch if isinstance(batch, tuple) else (batch, None)
        yield x.flatten(1).double().numpy(), y
