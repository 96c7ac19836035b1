"""What a server takes from a site, and what it does not: nothing that a site says is trusted."""

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
    """A message that is not accepted: `kind` is what it is counted under, the text goes to its sender."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def check_hello(hello: Register, classes: int | None, labels_needed: bool) -> None:
    """Raises `InvalidUpdateError` for a site that cannot take part."""
    if not 1 <= hello.samples <= MOST_SAMPLES:
        raise InvalidUpdateError("data", f"samples = {hello.samples} is not allowed: a site needs 1 to 2^40")
    if not 0 <= hello.steps_per_epoch <= hello.samples:
        raise InvalidUpdateError(
            "data",
            f"steps_per_epoch = {hello.steps_per_epoch} is not allowed: 0 to samples = {hello.samples}",
        )
    if hello.labels is None:
        if labels_needed:
            raise InvalidUpdateError(
                "data", "the algorithm needs each site's number of samples by class: tell it"
            )
        return
    if classes is not None and len(hello.labels) != classes:
        raise InvalidUpdateError("data", f"labels has {len(hello.labels)} classes, the run has {classes}")
    if any(not 0 <= count <= hello.samples for count in hello.labels):
        raise InvalidUpdateError("data", f"labels must be from 0 to samples = {hello.samples}")


def check_metrics(metrics: Metrics) -> dict[str, float]:
    """A site's metrics as floats."""
    for name, value in metrics.items():
        if name in _TAKEN:
            raise InvalidUpdateError(
                "metrics", f"metric {name!r} is a name of the server's own: choose another"
            )
        if not isfinite(value):
            raise InvalidUpdateError("not finite", f"metric {name!r} is {value}: it must be finite")
    return {name: float(value) for name, value in metrics.items()}


def check_steps(steps: int, most: int) -> int:
    """How many local steps were done, of `most` that were asked for."""
    if not 1 <= steps <= most:
        raise InvalidUpdateError("steps", f"{steps} local steps were done, the task has 1 to {most}")
    return steps


def check_result(
    result: UpdateSubmission, layout: Layout, steps: int, codec: Codec | None, norm_bound: float | None
) -> LocalResult:
    """The update in a site's result, decoded; raises `InvalidUpdateError`."""
    check_steps(result.steps, steps)
    metrics: Mapping[str, float] = check_metrics(result.metrics)
    if not (isfinite(result.lr) and result.lr >= 0):
        raise InvalidUpdateError(
            "not finite", f"lr = {result.lr}: the learning rate must be finite and at least 0"
        )
    delta = _delta(result.delta, layout, codec)
    if codec is not None:
        assert isinstance(result.delta, bytes)
        bits = 8 * len(result.delta) + 64 * layout.integers + 32 * layout.shared
        metrics = {**metrics, "bits": bits}
    _vector("integers", result.integers, layout.integers, torch.int64)
    if result.shared is not None:
        _vector("shared", result.shared, layout.shared, torch.float32)
        _finite("shared", result.shared)
    _finite("update", delta)
    if norm_bound is not None and (norm := float(delta[: layout.parameters].norm())) > norm_bound:
        raise InvalidUpdateError("norm", f"the update's norm is {norm:g}, at most {norm_bound:g} is taken")
    return LocalResult(delta, result.integers, metrics, float(result.lr), result.shared)


def _delta(delta: Tensor | bytes, layout: Layout, codec: Codec | None) -> Tensor:
    if codec is None:
        if isinstance(delta, bytes):
            raise InvalidUpdateError("layout", "the update is encoded, but the run has no codec")
        _vector("update", delta, layout.values, torch.float32)
        aligned = delta.is_contiguous() and delta.data_ptr() % _ALIGNMENT == 0
        return delta if aligned else delta.clone(memory_format=torch.contiguous_format)
    if not isinstance(delta, bytes):
        raise InvalidUpdateError("layout", f"the update is not encoded: the run's codec is {codec.kind!r}")
    try:
        return codec.decode(delta, layout.values)
    except PayloadError as error:
        raise InvalidUpdateError("payload", f"the update cannot be decoded: {error}") from None


def _vector(what: str, tensor: Tensor, size: int, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype or tensor.dim() != 1 or len(tensor) != size:
        found = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        wanted = f"{str(dtype).removeprefix('torch.')} [{size}]"
        raise InvalidUpdateError("layout", f"the {what} is {found}, the model's layout asks for {wanted}")


def _finite(what: str, tensor: Tensor) -> None:
    """All values are finite if their sum is; where it is not, it may have overflowed."""
    if not isfinite(tensor.sum().item()) and not bool(tensor.isfinite().all()):
        raise InvalidUpdateError("not finite", f"the {what} has values that are not finite (NaN or infinite)")
