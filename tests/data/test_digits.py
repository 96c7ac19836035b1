import re
import sys

import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.core.installation import install_hint
from offbeat.data import digits, load


def test_digits():
    pytest.importorskip("sklearn")
    source = load("digits")
    assert source.train.x.shape == (1437, 1, 8, 8)
    assert source.test.x.shape == (360, 1, 8, 8)
    assert source.train.x.min() == 0
    assert source.train.x.max() == 1
    assert source.train.classes == 10
    assert source.groups is None


def test_the_file_is_read_as_scikit_learn_reads_it():
    datasets = pytest.importorskip("sklearn.datasets")
    pixels, labels = datasets.load_digits(return_X_y=True)
    everything = digits._read()
    expected = torch.from_numpy(pixels.astype("float32") / 16.0).reshape(-1, 1, 8, 8)
    assert torch.equal(everything.x, expected)
    assert torch.equal(everything.y, torch.from_numpy(labels.astype("int64")))


def test_split_is_always_the_same_whatever_the_seed():
    pytest.importorskip("sklearn")
    a, b = load("digits"), load("digits", seed=7)
    assert torch.equal(a.train.x, b.train.x)
    # These are the first labels of the split as it was released; they must never change.
    assert a.train.y[:12].tolist() == [4, 9, 6, 5, 5, 8, 6, 1, 3, 9, 1, 9]
    assert a.test.y[:12].tolist() == [0, 6, 7, 2, 4, 3, 7, 4, 7, 5, 2, 5]


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    digits._read.cache_clear()
    with pytest.raises(UsageError, match=re.escape(install_hint("digits"))):
        load("digits")
