"""Errors of a client's training and evaluation: they name the client, the step and the batch."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.core.errors import DivergedError, OffbeatError, RunError, UsageError
from offbeat.core.learner import LocalTask
from offbeat.core.model import Model
from offbeat.data.dataset import Batch, Dataset, Samples, UnreadableSampleError, describe_batch, is_finite
from offbeat.data.federated import FederatedData
from offbeat.local.targets import TargetError

LARGE = 1e6
"""An input of this size is named where a loss is not finite: a step of a usual size is too long with it."""

_AS_FLOATS = "convert the samples to float32, with .float(), of NumPy .astype('float32')"
_SCALED = "make numbers of pixels from 0 to 255, with .float() / 255, of NumPy .astype('float32') / 255"
_HINTS = (
    (
        "(float32",
        "the same dtype",
        "use a float32 module, with Training(precision=…) for half precision, or convert in its forward",
    ),
    ("float64", "dtype", _AS_FLOATS),
    *(
        ("", said, _AS_FLOATS)
        for said in ("(double)", "Half and Float", "c10::Half", "Bool and Float", "(bool)", "Char and Float")
    ),
    *(("uint8", said, _SCALED) for said in ("Byte and Float", "(unsigned char)")),
    ("int64", "result type Float", "convert the targets to float32, with .float()"),
    *(
        ("int64", said, f"{_AS_FLOATS}; token ids are for a model with an embedding, such as textcnn")
        for said in ("Long and Float", "(long int)")
    ),
    ("int64", "out of range in self", "a token id is beyond the model's vocabulary: give both the same"),
    ("(str", "", "encode text as numbers: in the dataset, in its collate, or in step(module, batch)"),
    (
        "{",
        "unexpected keyword argument",
        "inputs by name are the arguments of the module's forward: call these so, or make (x, y) of each "
        "sample, by its dataset or by MapDataset(dataset, collate); of a Hugging Face dataset name the "
        "targets by label",
    ),
    ("", "dtype to be Long or Byte", "convert the labels to int64, with .long()"),
    ("", "scalar type Long but found Int", "convert the labels to int64, with .long()"),  # PyTorch 2.6
    ("", "input should be between 0 and 1", "end the module in a sigmoid, or give nn.BCEWithLogitsLoss()"),
    *(
        (
            "",
            said,
            "labels are 0 to C − 1 for a module with C scores: renumber them (y - 1 if they are from 1, "
            "y // 255 for masks of 0 and 255), or give it more scores",
        )
        for said in ("is out of bounds", "Class values must be")
    ),
    (
        "",
        "more than 1 value per channel",
        "BatchNorm takes two samples or more: where one remains at the end of a pass, training.drop_last = "
        "True leaves it out; else give a larger batch_size, or leave out clients with one sample",
    ),
)
"""Advice: a dtype in the batch ("" means any), words of PyTorch's message, and what to do."""


def unfit_batch(whose: str, module: nn.Module, doing: str, batch: Batch, why: str | Exception) -> UsageError:
    """A module or a loss that cannot take a batch.

    Args:
        whose: Whose batch it is, such as "client 3".
        module: The module.
        doing: What failed, "trained" or "evaluated".
        batch: The batch.
        why: The reason, in words or as what was raised.
    """
    if isinstance(why, UsageError):
        return UsageError(f"{whose}: {why}")
    told = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else why
    found = describe_batch(batch)
    hints = [hint for kind, said, hint in _HINTS if kind in found and said in told] + _of_shapes(batch, told)
    told += "".join(f"; {hint}" for hint in dict.fromkeys(hints))
    return UsageError(
        f"{whose}: {type(module).__name__} cannot be {doing} on a batch of {found}: {' '.join(told.split())}"
    )


def _of_shapes(batch: Batch, told: str) -> list[str]:
    """Advice on samples whose shape a layer does not take, which PyTorch's message has."""
    x = batch[0] if isinstance(batch, tuple | list) and len(batch) else batch
    shape = list(x.shape) if isinstance(x, Tensor) else []
    if match := re.search(r"to have (\d+) channels, but got", told):
        channels = int(match[1])
        if len(shape) > 3 and shape[-1] == channels != shape[1]:
            order = ", ".join(map(str, [0, len(shape) - 1, *range(1, len(shape) - 1)]))
            return [f"images have their channels first, [N, C, H, W]: give x.permute({order})"]
        if len(shape) == 3 and channels == 1:
            return ["images are [N, C, H, W]: give these their one channel, by x.unsqueeze(1)"]
        return [f"give the samples {channels} channels, or the module's first layer as many as these have"]
    if re.search(r"\(batched\) input to conv", told):
        return ["a convolution takes [N, C, H, W] (1d [N, C, L]): give the samples this shape, by x.reshape"]
    if match := re.search(r"shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)", told):
        flat = ", or begin with nn.Flatten() for images" * (len(shape) > 2)
        return [f"a layer takes {match[2]} values and gets {match[1]}: give it as many{flat}"]
    return []


def unreadable(error: UnreadableSampleError, whose: str, name: Callable[[int], str]) -> RunError:
    """A sample that the user's dataset does not give; `name(row)` is the sample in words."""
    return RunError(f"{whose}: {name(error.row)} cannot be read: {error.why}")


@contextmanager
def reading(whose: str, name: Callable[[int], str]) -> Iterator[None]:
    """Raise an error of a user's dataset as one that names the sample and its client."""
    try:
        yield
    except UnreadableSampleError as error:
        raise unreadable(error, whose, name) from error.__cause__
    except UsageError as error:
        kind = TargetError if isinstance(error, TargetError) else UsageError
        raise kind(f"{whose}: {error}") from error.__cause__


def unlabelled(told: str) -> str:
    """Why the loss of a batch is not a number of which no label counts."""
    return (
        f"no label of {told} counts: all are those that the loss ignores, or have class weight 0; leave "
        "these samples out"
    )


def not_finite(
    task: LocalTask, step: int, base: Model, data: FederatedData, seen: Sequence[Tensor], ignored: bool
) -> OffbeatError:
    """A loss that is not finite: because of the samples, of the model at the start, or of the training.

    Args:
        task: The task.
        step: Its local step, from 0.
        base: The model that the task starts from.
        data: The clients' samples.
        seen: The samples of each batch up to this step's, int64 [K]: one before may have made the weights
            infinite.
        ignored: Whether no label of this step's batch counts in the loss.
    """
    where = f"client {task.client}, task {task.task}, step {step + 1} of {task.steps}: the loss is not finite"
    rows = torch.cat([seen[-1], *seen[:-1]])
    rows = torch.from_numpy(rows.numpy()[np.sort(np.unique(rows.numpy(), return_index=True)[1])])
    if (bad := first_not_finite(data.train, rows)) is not None:
        sample = data.name_of(task.client, bad)
        place = place_of(data.train, bad, lambda x: ~x.isfinite())
        return UsageError(f"{where}: {sample} has NaN or infinite values{place}; remove or fill them")
    if ignored:
        return UsageError(f"{where}: {unlabelled('the batch')}, or the client, or give larger batches")
    if not bool(base.values.isfinite().all()):
        return DivergedError(
            f"{where}: version {task.base} of the model, from which the task starts, has NaN or infinite "
            "values; an earlier update has diverged: give a smaller learning rate"
        )
    if (large := _largest(data.train, rows)) is not None:
        row, value = large
        place = place_of(data.train, row, lambda x: x.abs() >= value)
        return DivergedError(
            f"{where}: {data.name_of(task.client, row)} has {value:g}{place}, with which training diverges; "
            "correct it, scale the inputs, or give a smaller learning rate"
        )
    return DivergedError(
        f"{where}, though the samples and the model at the start are: the training has diverged; give a "
        "smaller learning rate, or a clip_norm"
    )


def _largest(samples: Samples, rows: Tensor) -> tuple[int, float] | None:
    """The sample in memory with the largest number of x, if that is above `LARGE`, and this number."""
    x = samples.x if isinstance(samples, Dataset) else None
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return None
    if not x.numel():
        return None
    sizes = x[rows].reshape(len(rows), -1).abs().amax(1)
    return (int(rows[sizes.argmax()]), float(sizes.max())) if float(sizes.max()) >= LARGE else None


def place_of(samples: Samples, row: int, wrong: Callable[[Tensor], Tensor]) -> str:
    """Where a sample has a value that is wrong: " in column 'age'"; "" where x is no table."""
    x = samples.x if isinstance(samples, Dataset) else None
    if not isinstance(x, Tensor) or x.ndim != 2 or not bool((found := wrong(x[row])).any()):
        return ""
    column = int(found.int().argmax())
    names = samples.columns.get("x") if isinstance(samples, Dataset) else None
    return f" in column {column if names is None else repr(names[column])}"


def first_not_finite(samples: Samples, rows: Tensor) -> int | None:
    """The first sample with a value that is not finite; None means that all are finite."""
    return next((row for row in rows.tolist() if not is_finite(samples.gather(torch.tensor([row])))), None)


def check_arguments(module: Any, data: Any, functions: Mapping[str, Any], personal: Any) -> None:
    """Check a learner's arguments. Raises `UsageError` for the first argument of another kind."""
    if not isinstance(data, FederatedData):
        raise UsageError(
            f"data = a {type(data).__name__} is not allowed: divide it among clients, by offbeat.federate"
        )
    if not isinstance(module, nn.Module):
        try:
            inspect.signature(module).bind()
        except TypeError as error:
            raise UsageError(
                f"module = {_named(module)} cannot be called ({error}): give a module, or a function without "
                "arguments that makes one"
            ) from None
    for name, function in functions.items():
        if function is not None and (isinstance(function, type) or not callable(function)):
            raise UsageError(
                f"{name} = {_named(function)} is not allowed: give a function, or an object that is called"
            )
    if isinstance(personal, str):
        raise UsageError(f"personal = {personal!r} is not allowed: give a list, such as [{personal!r}]")


def _named(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)


def check_module(module: Any) -> nn.Module:
    """Check the result of a user's function. Raises `UsageError` where it is no module."""
    if isinstance(module, nn.Module):
        return module
    raise UsageError(
        f"the function that makes the module returned a {type(module).__name__}: return an nn.Module"
    )
