"""Training data of a deployed site, from its option --data."""

import importlib
import os
import re
import sys

import numpy as np

from offbeat.core.errors import UsageError
from offbeat.core.validation import did_you_mean
from offbeat.data import DATASETS, load
from offbeat.data.dataset import Dataset
from offbeat.data.federated import Source
from offbeat.data.subsample import fixed_permutation

SHARES = 2  # the stream of shuffles that shares are cut from


def site_data(text: str) -> Dataset:
    """Load a site's training data.

    Args:
        text: DATASET for a built-in dataset's whole train set, DATASET:GROUP for one of its natural groups (a
            hospital), DATASET:K/N for the Kth of N equal random shares, always the same. Anything else is
            module:function, a function without arguments that returns a `Dataset`; the module may be in the
            current directory.

    Raises:
        UsageError: There is no such dataset, group, share or function.
    """
    name, _, rest = text.partition(":")
    if name in DATASETS:
        source = load(name)
        return _part(source, rest) if rest else source.train
    if not rest:
        raise UsageError(f"--data {text}: there is no such dataset{did_you_mean(name, DATASETS)}")
    return _own(name, rest, text)


def _part(source: Source, rest: str) -> Dataset:
    if source.groups is not None and rest in source.group_names:
        return source.train.subset(np.flatnonzero(source.groups == source.group_names.index(rest)))
    share = re.fullmatch(r"(\d+)/(\d+)", rest)
    if share and 1 <= int(share[1]) <= int(share[2]) <= len(source.train):
        order = fixed_permutation(len(source.train), 0, SHARES)
        return source.train.subset(np.sort(np.array_split(order, int(share[2]))[int(share[1]) - 1]))
    groups = f", one of {', '.join(source.group_names)}" if source.groups is not None else ""
    raise UsageError(f"--data {source.name}:{rest} is not allowed: give K/N, the Kth of N shares{groups}")


def _own(module: str, function: str, text: str) -> Dataset:
    """Call the site's own function."""
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        made = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"--data {text}: {error}; give a built-in dataset ({', '.join(DATASETS)}) or module:function"
        ) from None
    finally:
        sys.path.pop(0)
    data = made()
    if not isinstance(data, Dataset):
        raise UsageError(f"--data {text} returned {type(data).__name__}: it must return an offbeat.Dataset")
    return data
