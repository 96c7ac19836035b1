"""Datasets by name."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from offbeat.core.errors import UsageError
from offbeat.data.dataset import Source
from offbeat.data.digits import load_digits
from offbeat.data.heart_disease import load_heart_disease
from offbeat.data.images import load_images
from offbeat.data.paths import data_root
from offbeat.data.subsample import Subsample


def _digits(root: Path, pick: Subsample) -> Source:  # noqa: ARG001 - digits come with scikit-learn, not with a file
    return load_digits(pick)


_LOADERS: dict[str, Callable[[Path, Subsample], Source]] = {
    "digits": _digits,
    "fashion_mnist": partial(load_images, "fashion_mnist"),
    "heart_disease": load_heart_disease,
    "mnist": partial(load_images, "mnist"),
}

DATASETS: tuple[str, ...] = tuple(_LOADERS)
"""The names `load` knows."""


def load(
    name: str,
    *,
    root: Path | None = None,
    samples: int | None = None,
    test_samples: int | None = None,
    seed: int = 0,
) -> Source:
    """The dataset `name` (one of `DATASETS`) from the data directory; it never uses the network.

    `root` is the data directory (None: OFFBEAT_DATA, else ~/.cache/offbeat). `samples` and `test_samples`
    take a random subsample without replacement of train and of test (None: all), the same for the same
    `seed`; groups stay with their samples. Raises `UsageError` for an unknown name, missing or broken
    files, and more samples than there are.
    """
    if name not in _LOADERS:
        raise UsageError(f"dataset {name!r} is unknown{_did_you_mean(name)}; known: {', '.join(DATASETS)}")
    return _LOADERS[name](data_root(root), Subsample(samples, test_samples, seed))


def _did_you_mean(name: str) -> str:
    """' - did you mean ...?' when a known dataset has a similar name, else nothing."""
    close = get_close_matches(name.lower().replace("-", "_"), DATASETS, n=1, cutoff=0.5)
    return f" - did you mean {close[0]!r}?" if close else ""
