"""Registry of datasets by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from offbeat.core.errors import UsageError
from offbeat.core.validation import did_you_mean
from offbeat.data.digits import load_digits
from offbeat.data.federated import Source
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
"""Names of the datasets that `load` knows."""


def load(
    name: str,
    *,
    root: Path | None = None,
    samples: int | None = None,
    test_samples: int | None = None,
    seed: int = 0,
) -> Source:
    """Load a dataset from the data directory; never uses the network.

    Args:
        name: One of `DATASETS`.
        root: The data directory. None means the environment's OFFBEAT_DATA, else ~/.cache/offbeat.
        samples: Size of a random subsample of the train set, without replacement. None means all samples.
        test_samples: Size of a random subsample of the test set. None means all samples.
        seed: Seed of the subsamples, from 0 to 2⁶⁴ − 1.

    Returns:
        Train and test set, and the natural groups of the train samples where there are groups.

    Raises:
        UsageError: The name is unknown, files are missing or broken, or more samples are asked for than the
            dataset has.
    """
    if name not in _LOADERS:
        hint = did_you_mean(name.lower().replace("-", "_"), DATASETS)
        raise UsageError(f"dataset {name!r} is unknown{hint}")
    return _LOADERS[name](data_root(root), Subsample(samples, test_samples, seed))
