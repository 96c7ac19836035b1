"""The 8x8 digits of scikit-learn: the dataset that needs no file."""

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from offbeat.core.extras import missing_extra
from offbeat.data.dataset import Dataset
from offbeat.data.federated import Source
from offbeat.data.subsample import Subsample, fixed_permutation

_TRAIN = 1437  # of 1797 samples, four fifths
_SPLIT_KEY = 0x0FFBEA7
_BRIGHTEST = 16.0


def load_digits(pick: Subsample) -> Source:
    """Load the digits: x float32 [N, 1, 8, 8] in [0, 1], ten classes, 1437 train and 360 test samples.

    The split is fixed; there are no groups. Raises `UsageError` when scikit-learn is not installed.
    """
    everything = _read()
    order = fixed_permutation(len(everything), _SPLIT_KEY, 0)
    train, test = order[:_TRAIN], order[_TRAIN:]
    return Source(
        "digits",
        everything.subset(train[pick.train(len(train))]),
        everything.subset(test[pick.test(len(test))]),
    )


@cache
def _read() -> Dataset:
    """All digits, read from scikit-learn's text file once; callers copy what they take."""
    with gzip.open(_file()) as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    x = torch.from_numpy(table[:, :-1] / np.float32(_BRIGHTEST)).reshape(-1, 1, 8, 8)
    return Dataset(x, torch.from_numpy(table[:, -1].astype(np.int64)), 10)


def _file() -> Path:
    """The text file in scikit-learn's package, whose import would take as long as PyTorch's."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise missing_extra("sklearn", "digits", "dataset 'digits': ")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
