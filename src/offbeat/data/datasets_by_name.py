"""The built-in datasets by name, and their loading."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from offbeat.core.errors import UsageError
from offbeat.core.validation import OptionError, did_you_mean
from offbeat.data.cifar import CIFAR10, CIFAR100, load_cifar
from offbeat.data.digits import load_digits
from offbeat.data.fed_isic2019 import load_fed_isic2019
from offbeat.data.fed_ixi import load_fed_ixi
from offbeat.data.federated import Source
from offbeat.data.hapt import load_hapt
from offbeat.data.heart_disease import load_heart_disease
from offbeat.data.images import load_images
from offbeat.data.imdb import load_imdb
from offbeat.data.paths import data_root
from offbeat.data.sent140 import load_sent140
from offbeat.data.sst2 import load_sst2
from offbeat.data.subsample import Subsample
from offbeat.data.text import TextOptions
from offbeat.data.tiny_imagenet import load_tiny_imagenet


def _digits(root: Path, pick: Subsample) -> Source:  # noqa: ARG001 - digits come with scikit-learn, not with a file
    return load_digits(pick)


@dataclass(frozen=True)
class DatasetEntry:
    """A built-in dataset.

    Attributes:
        load: Loads it from the data directory: a subsample, by its options if it has any.
        task: What is predicted of what.
        size: Numbers of train and test samples.
        sample: Shape of a sample.
        licence: What its owners allow, as they say it.
        groups: Its natural groups; empty where it has none.
        options: Class of its options. None means that it has none.
    """

    load: Callable[..., Source]
    task: str
    size: str
    sample: str
    licence: str
    groups: str = ""
    options: Callable[..., Any] | None = None


_NONE_STATED = "none stated"
_SHORT_TEXTS = partial(TextOptions, length=64)

ENTRIES: Mapping[str, DatasetEntry] = MappingProxyType(
    {
        "cifar10": DatasetEntry(
            partial(load_cifar, "cifar10", CIFAR10), "10 kinds of objects", "50,000 / 10,000", "3x32x32",
            _NONE_STATED,
        ),
        "cifar100": DatasetEntry(
            partial(load_cifar, "cifar100", CIFAR100), "100 kinds of objects", "50,000 / 10,000", "3x32x32",
            _NONE_STATED,
        ),
        "digits": DatasetEntry(_digits, "10 digits", "1,437 / 360", "1x8x8", "CC BY 4.0"),
        "fashion_mnist": DatasetEntry(
            partial(load_images, "fashion_mnist"), "10 kinds of clothes", "60,000 / 10,000", "1x28x28", "MIT"
        ),
        "fed_isic2019": DatasetEntry(
            load_fed_isic2019, "8 kinds of skin lesions", "18,597 / 4,650", "3x200x200", "CC BY-NC 4.0",
            "6 centres",
        ),
        "fed_ixi": DatasetEntry(
            load_fed_ixi, "brain or not, of each voxel", "453 / 113", "1x48x60x48", "CC BY-SA 3.0",
            "3 hospitals",
        ),
        "hapt": DatasetEntry(
            load_hapt, "6 activities by a smartphone's sensors", "8,094 / 1,923", "128x6", "CC BY 4.0",
            "30 persons",
        ),
        "heart_disease": DatasetEntry(
            load_heart_disease, "heart disease or none", "486 / 254", "13", "CC BY 4.0", "4 hospitals"
        ),
        "imdb": DatasetEntry(
            load_imdb, "praise or blame of a film", "25,000 / 25,000", "400 tokens", _NONE_STATED,
            options=TextOptions,
        ),
        "mnist": DatasetEntry(
            partial(load_images, "mnist"), "10 digits", "60,000 / 10,000", "1x28x28", "CC BY-SA 3.0"
        ),
        "sent140": DatasetEntry(
            load_sent140, "mood of a tweet", "by its users", "64 tokens", _NONE_STATED,
            "users with 100 tweets", _SHORT_TEXTS,
        ),
        "sst2": DatasetEntry(
            load_sst2, "praise or blame of a film", "67,349 / 872", "64 tokens", _NONE_STATED,
            options=_SHORT_TEXTS,
        ),
        "tiny_imagenet": DatasetEntry(
            load_tiny_imagenet, "200 kinds of objects", "100,000 / 10,000", "3x64x64",
            "ImageNet's: research only",
        ),
    }
)  # fmt: skip
"""The built-in datasets by name."""

DATASETS: tuple[str, ...] = tuple(ENTRIES)
"""Names of the datasets that `load` knows."""

_NONE: Mapping[str, Any] = MappingProxyType({})


def load(
    name: str,
    *,
    root: Path | None = None,
    samples: int | None = None,
    test_samples: int | None = None,
    seed: int = 0,
    options: Mapping[str, Any] = _NONE,
) -> Source:
    """Load a dataset from the data directory; never uses the network.

    Args:
        name: One of `DATASETS`.
        root: The data directory. None means the environment variable OFFBEAT_DATA, else ~/.cache/offbeat.
        samples: Size of a random subsample of the train set, without replacement. None means all samples.
        test_samples: Size of a random subsample of the test set. None means all samples.
        seed: Seed of the subsamples, from 0 to 2⁶⁴ − 1.
        options: Options of the dataset, such as the vocabulary of a text dataset.

    Returns:
        Train and test set, and the natural groups of the train samples where there are groups.

    Raises:
        UsageError: The name or an option is unknown, files are missing or broken, or the dataset has fewer
            samples than requested.
    """
    if name not in ENTRIES:
        hint = did_you_mean(name.lower().replace("-", "_"), DATASETS)
        raise UsageError(f"dataset {name!r} is unknown{hint}")
    given = dataset_options(name, options)
    pick = Subsample(samples, test_samples, seed)
    loader = ENTRIES[name].load
    return loader(data_root(root), pick) if given is None else loader(data_root(root), pick, given)


def dataset_options(name: str, options: Mapping[str, Any]) -> Any:
    """Check the options of a built-in dataset.

    Args:
        name: Name of the dataset.
        options: Its options.

    Returns:
        They, with the defaults of the others. None means that the dataset has no options.

    Raises:
        UsageError: An option is unknown or its value is not allowed.
    """
    kind = ENTRIES[name].options
    if kind is not None:
        try:
            return kind(**options)
        except OptionError as error:
            raise UsageError(f"options of dataset {name!r}: {str(error).partition(': ')[2]}") from None
    if options:
        raise UsageError(
            f"dataset {name!r} has no options, so {', '.join(options)} is not allowed: leave it out"
        )
    return None
