"""Data of a deployed run: those of a site, from its option --data, and of the server, from --test."""

import re

import numpy as np

from offbeat.core.errors import UsageError
from offbeat.core.validation import did_you_mean
from offbeat.data import DATASETS, load
from offbeat.data.dataset import Samples
from offbeat.data.federated import FederatedData, Source, own_data
from offbeat.data.subsample import fixed_permutation
from offbeat.named import load_named, named_errors

# Shares are cut from this stream of shuffles.
SHARES = 2


def site_data(text: str) -> FederatedData:
    """Load a site's data.

    Args:
        text: DATASET for a built-in dataset's whole train set, DATASET:GROUP for one of its natural groups (a
            hospital), DATASET:K/N for the Kth of N equal random shares, always the same. Anything else is
            module:function, a function without arguments that returns what `own_data` takes; the module may
            be in the current directory.

    Returns:
        The data of one client.

    Raises:
        UsageError: There is no such dataset, group, share or function, or the function raises.
    """
    name, _, rest = text.partition(":")
    if name not in DATASETS:
        if re.fullmatch(r"\d+/\d+", rest):
            # No function has the name of a share.
            raise UsageError(f"--data {text}: dataset {name} is unknown{did_you_mean(name, DATASETS)}")
        return _named(text, "--data")
    source = load(name)
    return own_data(_part(source, rest) if rest else source.train)


def server_data(text: str) -> Samples:
    """Load a server's test data: DATASET for the test set of a built-in one, or module:function.

    Raises:
        UsageError: There is no such dataset or function, or the function raises.
    """
    return load(text).test if text in DATASETS else _named(text, "--test").train


def _part(source: Source, selection: str) -> Samples:
    if source.groups is not None and selection in source.group_names:
        return source.train.subset(np.flatnonzero(source.groups == source.group_names.index(selection)))
    share = re.fullmatch(r"(\d+)/(\d+)", selection)
    if share and 1 <= int(share[1]) <= int(share[2]) <= len(source.train):
        order = fixed_permutation(len(source.train), 0, SHARES)
        return source.train.subset(np.sort(np.array_split(order, int(share[2]))[int(share[1]) - 1]))
    groups = f", one of {', '.join(source.group_names)}" if source.groups is not None else ""
    raise UsageError(
        f"--data {source.name}:{selection} is not allowed: give K/N, the Kth of N shares{groups}"
    )


def _named(text: str, option: str) -> FederatedData:
    """Call a user's function."""
    if ":" not in text:
        raise UsageError(
            f"{option} {text}: there is no such dataset{did_you_mean(text, DATASETS)}; "
            "or give module:function"
        )
    function = load_named(text, option)
    with named_errors(text, option):
        data = function()
    try:
        return own_data(data)
    except UsageError as error:
        raise UsageError(f"{option} {text} returned a {type(data).__name__}: {error}") from None
