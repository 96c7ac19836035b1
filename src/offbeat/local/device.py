"""The device that a learner trains on, and the tensors there."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from offbeat.core.errors import UsageError
from offbeat.core.streams import StreamCursor
from offbeat.data.dataset import Batch, Dataset, Samples, to_device
from offbeat.local.fast.cuda_graphs import CapturedGradients
from offbeat.local.flat_module import FlatModule
from offbeat.local.gradient_flow import GradientFlow
from offbeat.local.misread_scores import ScoreWatch


def check_device(device: str, option: str = "device") -> None:
    """Raises `UsageError` for an unknown device of PyTorch, or one that is not on this machine.

    Args:
        device: Name of the device.
        option: What gives it, for the error.
    """
    kind, _, number = device.partition(":")
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in available or not (kind == "cpu" or device == kind or number.isdecimal()):
        raise UsageError(f"{option} = {device!r} is not allowed: choose cpu, cuda, cuda:N or mps")
    if not available[kind] or (kind == "cuda" and int(number or 0) >= torch.cuda.device_count()):
        raise UsageError(f"{option} = {device!r} is not on this machine: choose cpu")


@contextmanager
def full_precision(device: str) -> Iterator[None]:
    """A context in which a CUDA GPU computes float32 in float32, and not in TF32, which rounds to 11 bits."""
    with ExitStack() as stack:
        if torch.device(device).type == "cuda":
            try:
                stack.enter_context(_without_tf32())
            except RuntimeError:
                # The user has chosen by the newer settings, which do not mix with the older ones.
                stack.enter_context(_by_newer_settings())
        yield


@contextmanager
def _without_tf32() -> Iterator[None]:
    cudnn, matmul = torch.backends.cudnn, torch.get_float32_matmul_precision()
    own = cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, cudnn.deterministic
    with cudnn.flags(*own, allow_tf32=False):
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(matmul)


@contextmanager
def _by_newer_settings() -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn
    settings = torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn
    before = [(each, each.fp32_precision) for each in settings]
    try:
        for each in settings:
            each.fp32_precision = "ieee"
        yield
    finally:
        for each, precision in before:
            each.fp32_precision = precision


AHEAD = 64
"""Batches whose rows are copied to a device together."""

RESIDENT = 4 << 30
"""Bytes of a test set that stays on a GPU, beside the train set; of a larger one each batch is copied."""

LAID_OUT = 512 << 20
"""Bytes of images that a learner keeps on a CPU in the module's memory layout, in each process; images beyond
that are laid out batch by batch."""


def resident(samples: Dataset, bench: FlatModule, device: str) -> Dataset:
    """A dataset on a device, in the memory layout in which the module is fastest.

    On a CPU, a copy in this layout has at most `LAID_OUT` bytes: a larger dataset is given back as it is.
    """
    there = samples.to(device)
    if there is samples and samples.nbytes > LAID_OUT:
        return samples
    x = bench.laid_out(there.x)
    return there if x is there.x else Dataset(x, there.y, there.classes)


@dataclass
class DeviceState:
    """A learner's module and train set on its device, and the streams of its last run.

    `seed` is that of the run the module was made for; None means that it serves any. `flow` and
    `scores` watch the first task; None means that it is over. `captured` makes gradients by CUDA graphs; None
    means without. `own_code` says whether code of the user's runs, which may draw from NumPy's and Python's
    generators.
    """

    bench: FlatModule
    train: Samples
    device: str
    seed: int | None
    flow: GradientFlow | None = None
    scores: ScoreWatch | None = None
    captured: CapturedGradients | None = None
    own_code: bool = True
    _streams: tuple[int, StreamCursor] | None = None
    _resident: list[tuple[Dataset, Dataset]] = field(default_factory=list)

    def placed(self, rows: Iterator[Tensor]) -> Iterator[Tensor]:
        """The rows of batches where the train set is: many batches' are copied to a device together."""
        if self.device == "cpu" or not isinstance(self.train, Dataset):
            return rows
        return self._copied(rows)

    def _copied(self, rows: Iterator[Tensor]) -> Iterator[Tensor]:
        while block := list(islice(rows, AHEAD)):
            yield from to_device(torch.cat(block), self.device).split([len(own) for own in block])

    def gather(self, indices: Tensor) -> Batch:
        """Select samples of the train set, in the memory layout in which the module is fastest."""
        if isinstance(self.train, Dataset):
            return self.bench.laid_out(self.train.gather(indices.to(self.device, non_blocking=True)))
        return self.bench.laid_out(to_device(self.train.gather(indices), self.device))

    def keep(self, here: Samples, there: Samples) -> None:
        """Know that what is `here` on the CPU is on the device too."""
        if here is not there and isinstance(here, Dataset) and isinstance(there, Dataset):
            self._resident.append((here, there))

    def resident(self, samples: Samples) -> Dataset | None:
        """A dataset as it stays on the device; None for what is no dataset, and for a large one.

        On a CPU, only images that are kept in another memory layout than their own are resident.
        """
        if not isinstance(samples, Dataset):
            return None
        found = next((there for here, there in self._resident if here is samples), None)
        if found is None and samples.nbytes <= self._left():
            found = resident(samples, self.bench, self.device)
            self.keep(samples, found)
        return None if found is samples else found

    def _left(self) -> int:
        """Bytes that another dataset may have."""
        if self.device != "cpu":
            return RESIDENT
        return LAID_OUT - sum(there.nbytes for _, there in self._resident)

    def streams(self, seed: int) -> StreamCursor:
        """Streams of a run of this seed."""
        if self._streams is None or self._streams[0] != seed:
            self._streams = seed, StreamCursor(seed)
        return self._streams[1]
