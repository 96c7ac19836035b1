"""Checks of module and data before a run: targets that the loss can mean, patterns that name tensors."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import nn

from offbeat.core.errors import UsageError
from offbeat.core.module_tensors import ModuleTensors
from offbeat.core.validation import did_you_mean
from offbeat.data.dataset import Dataset
from offbeat.data.federated import FederatedData, Rows
from offbeat.local.criterion import Criterion, call
from offbeat.local.targets import check_targets, kind_of_targets, scores_of

CHUNK = 4096
"""Targets that are looked at together: a check copies them several times."""


def check_data(data: FederatedData, criterion: Criterion, module: nn.Module, device: str) -> None:
    """Check the targets in memory, of the clients and of the server.

    Args:
        data: The clients' samples, and the server's.
        criterion: The loss, which says what a target can be. A `step` of the user's own may mean any.
        module: The module, asked for its number of scores where a wrong label would end the process.
        device: PyTorch device of the training.

    Raises:
        UsageError: A target is none that the loss can mean; one line with the sample, and its client.
    """
    loss, train = criterion.loss, data.train
    if kind_of_targets(loss) is None or criterion.step is not None:
        return
    if isinstance(train, Dataset) and train.y is not None and len(train):
        classes = None
        if device != "cpu":
            # On a GPU, a label out of range ends the process.
            classes = scores_of(module, train.gather(torch.zeros(1, dtype=torch.int64)), call)
        check = partial(check_targets, loss, classes=classes)
        for rows in (data.rows,) if data.held_out is None else (data.rows, data.held_out):
            for at, part in enumerate(torch.split(rows.indices, CHUNK)):
                check(train.y[part], partial(_name_of, data, rows, at * CHUNK))
    for what, samples in (("test", data.test), ("root", data.root)):
        if isinstance(samples, Dataset):
            check_targets(loss, samples.y, f"the {what} set: sample {{}}".format)


def _name_of(data: FederatedData, rows: Rows, start: int, n: int) -> str:
    """The nth of some clients' samples from `start` in words, and its client."""
    n += start
    client = int(torch.searchsorted(rows.offsets, n, right=True)) - 1
    return f"client {client}: {data.name_of(client, int(rows.indices[n]))}"


def check_personal(patterns: Sequence[str], module: nn.Module) -> None:
    """Raises `UsageError` for a pattern of personal tensors that matches none of the module's."""
    tensors = ModuleTensors.of(module)
    names, aliases = list(tensors.named), dict(tensors.aliases)
    for pattern in patterns:
        if any(fnmatchcase(name, pattern) for name in (*names, *tensors.wrapped.values())):
            continue
        tied = next((name for name in aliases if fnmatchcase(name, pattern)), None)
        if tied is not None:
            raise UsageError(
                f"personal: {pattern!r} matches {tied}, which is the tensor {aliases[tied]} under "
                f"another name: give {aliases[tied]!r}"
            )
        inside = any(name.startswith(f"{pattern}.") for name in names)
        hint = f'; did you mean "{pattern}.*"?' if inside else did_you_mean(pattern, names)
        raise UsageError(f"personal: {pattern!r} matches no tensor of the module{hint}")
