"""Validation of what sites send: nothing of it is trusted."""

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor

from offbeat.core.codec import Codec, PayloadError
from offbeat.core.errors import OffbeatError
from offbeat.core.events import Metrics
from offbeat.core.journal import Row
from offbeat.core.learner import LocalResult
from offbeat.core.model import Layout
from offbeat.net.messages import Register, UpdateSubmission

MOST_SAMPLES = 2**40
_ALIGNMENT = 64  # of PyTorch's own memory: the last bits of a dot product can depend on where a vector starts
_TAKEN = frozenset({*Row.__struct_fields__, "seconds", "bits"})
"""What a journal's reader would mistake a metric for; a server counts an update's bits itself."""


class InvalidUpdateError(OffbeatError, ValueError):
    """A message that is not accepted; `kind` is the word under which such errors are counted."""

    def __init__(self, reason: str, kind: str) -> None:
        super().__init__(reason)
        self.kind = kind


def check_register(register: Register, classes: int | None, labels_needed: bool) -> None:
    """Raises `InvalidUpdateError` for a site that cannot take part."""
    if not 1 <= register.samples <= MOST_SAMPLES:
        raise InvalidUpdateError(
            f"samples = {register.samples} is not allowed: a site needs 1 to 2^40", "data"
        )
    if not 0 <= register.steps_per_epoch <= register.samples:
        raise InvalidUpdateError(
            f"steps_per_epoch = {register.steps_per_epoch} is not allowed: 0 to samples = {register.samples}",
            "data",
        )
    if register.labels is None:
        if labels_needed:
            raise InvalidUpdateError(
                "the algorithm needs each site's number of samples by class: tell it", "data"
            )
        return
    if classes is not None and len(register.labels) != classes:
        raise InvalidUpdateError(f"labels has {len(register.labels)} classes, the run has {classes}", "data")
    if any(not 0 <= count <= register.samples for count in register.labels):
        raise InvalidUpdateError(f"labels must be from 0 to samples = {register.samples}", "data")


def check_metrics(metrics: Metrics) -> dict[str, float]:
    """A site's metrics as floats."""
    for name, value in metrics.items():
        if name in _TAKEN:
            raise InvalidUpdateError(
                f"metric {name!r} is a name of the server's own: choose another", "metrics"
            )
        if not isfinite(value):
            raise InvalidUpdateError(f"metric {name!r} is {value}: it must be finite", "not finite")
    return {name: float(value) for name, value in metrics.items()}


def check_steps(steps: int, most: int) -> int:
    """How many local steps were done, of `most` that were asked for."""
    if not 1 <= steps <= most:
        raise InvalidUpdateError(f"{steps} local steps were done, the task has 1 to {most}", "steps")
    return steps


def check_update(
    update: UpdateSubmission, layout: Layout, steps: int, codec: Codec | None, norm_bound: float | None
) -> LocalResult:
    """The decoded update of a site; raises `InvalidUpdateError`."""
    check_steps(update.steps, steps)
    metrics: Mapping[str, float] = check_metrics(update.metrics)
    if not (isfinite(update.lr) and update.lr >= 0):
        raise InvalidUpdateError(
            f"lr = {update.lr}: the learning rate must be finite and at least 0", "not finite"
        )
    delta = _delta(update.delta, layout, codec)
    if codec is not None:
        assert isinstance(update.delta, bytes)
        bits = 8 * len(update.delta) + 64 * layout.integers + 32 * layout.shared
        metrics = {**metrics, "bits": bits}
    _vector("integers", update.integers, layout.integers, torch.int64)
    if update.shared is not None:
        _vector("shared", update.shared, layout.shared, torch.float32)
        _finite("shared", update.shared)
    _finite("update", delta)
    if norm_bound is not None and (norm := float(delta[: layout.parameters].norm())) > norm_bound:
        raise InvalidUpdateError(f"the update's norm is {norm:g}, at most {norm_bound:g} is taken", "norm")
    return LocalResult(delta, update.integers, metrics, float(update.lr), update.shared)


def _delta(delta: Tensor | bytes, layout: Layout, codec: Codec | None) -> Tensor:
    if codec is None:
        if isinstance(delta, bytes):
            raise InvalidUpdateError("the update is encoded, but the run has no codec", "layout")
        _vector("update", delta, layout.values, torch.float32)
        aligned = delta.is_contiguous() and delta.data_ptr() % _ALIGNMENT == 0
        return delta if aligned else delta.clone(memory_format=torch.contiguous_format)
    if not isinstance(delta, bytes):
        raise InvalidUpdateError(f"the update is not encoded: the run's codec is {codec.kind!r}", "layout")
    try:
        return codec.decode(delta, layout.values)
    except PayloadError as error:
        raise InvalidUpdateError(f"the update cannot be decoded: {error}", "payload") from None


def _vector(what: str, tensor: Tensor, size: int, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype or tensor.dim() != 1 or len(tensor) != size:
        found = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        wanted = f"{str(dtype).removeprefix('torch.')} [{size}]"
        raise InvalidUpdateError(f"the {what} is {found}, the model's layout asks for {wanted}", "layout")


def _finite(what: str, tensor: Tensor) -> None:
    """All values are finite if their sum is; where it is not, it may have overflowed."""
    if not isfinite(tensor.sum().item()) and not bool(tensor.isfinite().all()):
        raise InvalidUpdateError(f"the {what} has values that are not finite (NaN or infinite)", "not finite")
