"""Checks of module and data before a run: targets that the loss can mean, patterns that name tensors."""

import logging
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from offbeat.core.errors import UsageError
from offbeat.core.module_tensors import ModuleTensors
from offbeat.core.validation import did_you_mean
from offbeat.data.columns import listed
from offbeat.data.dataset import Dataset, Samples
from offbeat.data.federated import FederatedData, Rows
from offbeat.local.copies import copied
from offbeat.local.criterion import Criterion, call, split
from offbeat.local.targets import check_targets, kind_of_targets, scores_of
from offbeat.local.training import Training

log = logging.getLogger(__name__)

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


def warn_of_single_samples(data: FederatedData, training: Training, module: nn.Module) -> None:
    """Warn of clients whose last batch of a pass has one sample, if the module's BatchNorm cannot take it.

    This is no error, since short tasks do not come to that batch.

    Args:
        data: The clients' samples.
        training: Batch size, whether the last batch is left out, and the parts of a batch.
        module: The module, which is not changed.
    """
    if not any(isinstance(layer, _BatchNorm) for layer in module.modules()):
        return
    samples, size = data.rows.offsets.diff(), training.batch_size
    last = samples.clamp(max=size) if training.drop_last else (samples - 1) % size + 1
    alone = ((samples > 0) & (last // last.clamp(1, training.accumulate) == 1)).nonzero().flatten().tolist()
    if not alone or _takes(module, data.train, data.client_indices(alone[0])[:1]):
        return
    told = listed([data.names[client] if data.names else str(client) for client in alone], 5)
    log.warning(
        "%s %s: the last batch of a pass has one sample, of which BatchNorm cannot be trained: a task "
        "that comes to it fails; choose training.drop_last = True, another batch_size than %d, or more data",
        "client" if len(alone) == 1 else "clients", told, size,
    )  # fmt: skip


def _takes(module: nn.Module, samples: Samples, row: torch.Tensor) -> bool:
    """Whether BatchNorm takes one sample in training: it does if the sample has several values a channel."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            call(copied(module).train(), split(samples.gather(row))[0])
        except Exception as error:
            # Any other error is for the training to tell.
            return "more than 1 value per channel" not in str(error)
    return True


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
