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
from offbeat.core.metric_names import QUANTILES, UNDEFINED, WORST
from offbeat.core.model import Layout
from offbeat.net.messages import EvaluationResult, Register, UpdateSubmission

MOST_SAMPLES = 2**40
_ALIGNMENT = 64  # of PyTorch's own memory: the last bits of a dot product can depend on where a vector starts
_TAKEN = frozenset({*Row.__struct_fields__, "seconds", "bits"})
"""What a journal's reader would mistake a metric for; a server counts an update's bits itself."""
_STATISTICS = frozenset({WORST, UNDEFINED, *QUANTILES})
"""What the statistics over sites are called, after the metric and a dot."""


class InvalidUpdateError(OffbeatError, ValueError):
    """A message that is not accepted; `kind` is the word under which such errors are counted."""

    def __init__(self, reason: str, kind: str) -> None:
        super().__init__(reason)
        self.kind = kind


def check_register(register: Register, classes: int | None, labels_needed: bool) -> None:
    """Check that a site can take part.

    Args:
        register: The site's message.
        classes: Number of classes of the run's data; None means any.
        labels_needed: Whether the algorithm requires each site's numbers of samples by class.

    Raises:
        InvalidUpdateError: The site cannot take part.
    """
    samples, steps, labels = register.samples, register.steps_per_epoch, register.labels
    held_out = register.held_out
    if not 1 <= samples <= MOST_SAMPLES:
        reason = f"samples = {samples} is not allowed: a site needs 1 to 2^40"
    elif not 0 <= steps <= samples:
        reason = f"steps_per_epoch = {steps} is not allowed: 0 to samples = {samples}"
    elif not 0 <= held_out <= MOST_SAMPLES:
        reason = f"held_out = {held_out} is not allowed: 0 to 2^40 samples"
    elif labels is None and labels_needed:
        reason = "the algorithm needs each site's number of samples by class: tell it"
    elif labels is not None and classes is not None and len(labels) != classes:
        reason = f"labels has {len(labels)} classes, the run has {classes}"
    elif labels is not None and not all(0 <= count <= samples for count in labels):
        reason = f"labels must be from 0 to samples = {samples}"
    else:
        return
    raise InvalidUpdateError(reason, "data")


def check_metrics(metrics: Metrics) -> dict[str, float]:
    """A site's metrics as floats.

    Raises:
        InvalidUpdateError: A metric is not finite, or its name is one of the server's own.
    """
    for name, value in metrics.items():
        if name in _TAKEN:
            reason = f"metric {name!r} is a name of the server's own: choose another"
            raise InvalidUpdateError(reason, "metrics")
        if not isfinite(value):
            raise InvalidUpdateError(f"metric {name!r} is {value}: it must be finite", "not finite")
    return {name: float(value) for name, value in metrics.items()}


def check_evaluation(result: EvaluationResult, held_out: int) -> dict[str, float]:
    """A site's metrics of an evaluation as floats; NaN is one that is undefined there.

    Args:
        result: The site's message.
        held_out: Number of samples that the site holds out.

    Raises:
        InvalidUpdateError: The number of samples is another one, or a name cannot be that of a metric.
    """
    if result.samples not in (0, held_out):
        reason = f"samples = {result.samples} is not allowed: the site registered with {held_out} held out"
        raise InvalidUpdateError(reason, "evaluation")
    for name in result.metrics:
        if not name.isprintable() or not name or name == "count" or name.rpartition(".")[2] in _STATISTICS:
            raise InvalidUpdateError(f"metric {name!r} is not allowed: choose another name", "metrics")
    return {name: float(value) for name, value in result.metrics.items()}


def check_steps(steps: int, most: int) -> int:
    """The number of local steps that were done, of `most` that were asked for.

    Raises:
        InvalidUpdateError: It is not from 1 to `most`.
    """
    if not 1 <= steps <= most:
        raise InvalidUpdateError(f"{steps} local steps were done, the task has 1 to {most}", "steps")
    return steps


def check_update(
    update: UpdateSubmission, layout: Layout, steps: int, codec: Codec | None, norm_bound: float | None
) -> LocalResult:
    """Decode a site's update.

    Args:
        update: The site's message.
        layout: Layout of the model.
        steps: Local steps that were asked for.
        codec: The run's codec, if it has one.
        norm_bound: The largest norm of the parameters' update; None means no bound.

    Raises:
        InvalidUpdateError: The update is not accepted.
    """
    check_steps(update.steps, steps)
    metrics: Mapping[str, float] = check_metrics(update.metrics)
    lr = float(update.lr)
    if not (isfinite(lr) and lr >= 0):
        reason = f"lr = {lr}: the learning rate must be finite and at least 0"
        raise InvalidUpdateError(reason, "not finite")
    delta = _delta(update.delta, layout, codec)
    if isinstance(update.delta, bytes):
        bits = 8 * len(update.delta) + 64 * layout.integers + 32 * layout.shared
        metrics = {**metrics, "bits": bits}
    _vector("integers", update.integers, layout.integers, torch.int64)
    if update.shared is not None:
        _vector("shared", update.shared, layout.shared, torch.float32)
        _finite("shared", update.shared)
    _finite("update", delta)
    if norm_bound is not None and (norm := float(delta[: layout.parameters].norm())) > norm_bound:
        raise InvalidUpdateError(f"the update's norm is {norm:g}, at most {norm_bound:g} is taken", "norm")
    return LocalResult(delta, update.integers, metrics, lr, update.shared)


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
