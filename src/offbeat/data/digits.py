"""The 8x8 digits of scikit-learn: the dataset that needs no file."""

from functools import cache

import numpy as np
import torch

from offbeat.core.extras import requires_extra
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
    with requires_extra("digits", "dataset 'digits': "):
        from sklearn import datasets
    pixels, labels = datasets.load_digits(return_X_y=True)
    x = torch.from_numpy(pixels.astype(np.float32) / _BRIGHTEST).reshape(-1, 1, 8, 8)
    return Dataset(x, torch.from_numpy(labels.astype(np.int64)), 10)
