"""Validation of what sites send: nothing of it is trusted."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, isnan, nan
from typing import Protocol

import torch
from msgspec.structs import replace
from torch import Tensor

from offbeat.core.codec import Codec, PayloadError
from offbeat.core.commands import Train
from offbeat.core.errors import OffbeatError
from offbeat.core.events import Metrics
from offbeat.core.global_model import GlobalModel
from offbeat.core.guard import norms_of
from offbeat.core.journal import NOT_METRICS, Row
from offbeat.core.layout import Layout
from offbeat.core.learner import LocalResult
from offbeat.core.metric_names import QUANTILES, SHARES, UNDEFINED, WORST, problem_of_name
from offbeat.core.model import Model
from offbeat.core.privacy.refusals import Refusal
from offbeat.net.messages import LABELS_NEEDED, EvaluationResult, Register, UpdateSubmission
from offbeat.net.server.site_directions import SiteDirections
from offbeat.net.server.site_registry import SiteRecord

log = logging.getLogger(__name__)

MOST_SAMPLES = 2**40
LARGEST_METRIC = 1e30
"""Greatest size of a metric: sums of such numbers over all sites' samples are finite."""
SMALLEST_LR, LARGEST_LR = 1e-12, 1e6
"""Learning rates that a site may have trained with, or 0: an aggregator may divide by them."""
INTEGERS_PER_STEP = 1000
"""How far an integer buffer may go from where the task began, for each local step."""
# PyTorch aligns its memory so: the last bits of a dot product can depend on where a vector starts.
_ALIGNMENT = 64
_TAKEN = frozenset({*Row.__struct_fields__, *NOT_METRICS, "bits"})
"""What a journal's reader would mistake a metric for; a server counts an update's bits itself."""
_STATISTICS = frozenset({WORST, UNDEFINED, *QUANTILES})
"""What the statistics over sites are called, after the metric and a dot."""


class InvalidUpdateError(OffbeatError, ValueError):
    """A message that is not accepted; `kind` is the word under which such errors are counted."""

    def __init__(self, reason: str, kind: str) -> None:
        super().__init__(reason)
        self.kind = kind


def check_register(
    register: Register, classes: int | None, labels_needed: bool, most: int | None = None, unit: int = 1
) -> None:
    """Check that a site can take part.

    Args:
        register: The site's message.
        classes: Number of classes of the run's data; None means any.
        labels_needed: Whether the algorithm requires each site's numbers of samples by class.
        most: Most samples that a site may have, to train and to evaluate on; None means 2^40.
        unit: Of what these numbers are multiples.

    Raises:
        InvalidUpdateError: The site cannot take part.
    """
    samples, steps, labels = register.samples, register.steps_per_epoch, register.labels
    held_out = register.held_out
    if most is not None and max(samples, held_out) > most:
        which = "samples" if samples > most else "held_out"
        reason = f"{which} = {max(samples, held_out)} is not allowed: this server takes max_samples = {most}"
    elif not 1 <= samples <= MOST_SAMPLES:
        reason = f"samples = {samples} is not allowed: a site needs 1 to 2^40"
    elif not 0 <= steps <= samples:
        reason = f"steps_per_epoch = {steps} is not allowed: 0 to samples = {samples}"
    elif not 0 <= held_out <= MOST_SAMPLES:
        reason = f"held_out = {held_out} is not allowed: 0 to 2^40 samples"
    elif samples % unit or held_out % unit:
        option, given = ("samples", samples) if samples % unit else ("held_out", held_out)
        reason = Refusal.SAMPLES_UNIT.format(option=option, given=given, unit=unit)
    elif not labels and labels_needed:
        reason = LABELS_NEEDED
    elif labels and classes is not None and len(labels) != classes:
        reason = f"labels has {len(labels)} classes, the run has {classes}"
    elif not all(0 <= count <= samples for count in labels):
        reason = f"labels must be from 0 to samples = {samples}"
    else:
        return
    raise InvalidUpdateError(reason, "data")


def check_metrics(metrics: Metrics, ranges: Mapping[str, tuple[float, float]] = {}) -> dict[str, float]:
    """A site's metrics as floats.

    Args:
        metrics: The metrics.
        ranges: Least and greatest value of those that the algorithm computes with.

    Raises:
        InvalidUpdateError: A metric is out of its range, or its name is not one that a metric can have.
    """
    for name, value in metrics.items():
        why = "it is a name of the server's own" if name in _TAKEN else problem_of_name(name)
        if why is not None:
            raise InvalidUpdateError(f"metric {name!r:.60} is not allowed: {why}", "metrics")
        if not isfinite(value):
            raise InvalidUpdateError(f"metric {name!r} is {value}: it must be finite", "not finite")
        least, most = ranges.get(name, (-LARGEST_METRIC, LARGEST_METRIC))
        if not least <= value <= most:
            reason = f"metric {name!r} is {value:g}: it must be from {least:g} to {most:g}"
            raise InvalidUpdateError(reason, "metrics")
    return {name: float(value) for name, value in metrics.items()}


def check_evaluation(result: EvaluationResult, held_out: int) -> dict[str, float]:
    """A site's metrics of an evaluation as floats; NaN is one that is undefined there, or too large.

    Args:
        result: The site's message.
        held_out: Number of samples that the site holds out.

    Raises:
        InvalidUpdateError: The number of samples is another one, or a name cannot be that of a metric.
    """
    if result.samples not in (0, held_out):
        reason = f"samples = {result.samples} is not allowed: the site registered with {held_out} held out"
        raise InvalidUpdateError(reason, "evaluation")
    for name, value in result.metrics.items():
        taken = name == "count" or name.rpartition(".")[2] in _STATISTICS
        why = "it is a name of the server's own" if taken else problem_of_name(name)
        if why is not None:
            raise InvalidUpdateError(f"metric {name!r:.60} is not allowed: {why}", "metrics")
        if name in SHARES and not isnan(value) and not -1e-6 <= value <= 1 + 1e-6:
            raise InvalidUpdateError(f"metric {name!r} is {value:g}: it must be from 0 to 1", "metrics")
    return {n: float(v) if abs(v) <= LARGEST_METRIC else nan for n, v in result.metrics.items()}


def check_steps(steps: int, most: int) -> int:
    """The number of local steps that were done, of `most` that were asked for.

    Raises:
        InvalidUpdateError: It is not from 1 to `most`.
    """
    if not 1 <= steps <= most:
        raise InvalidUpdateError(f"{steps} local steps were done, the task has 1 to {most}", "steps")
    return steps


def check_update(
    update: UpdateSubmission,
    base: Model,
    steps: int,
    codec: Codec | None,
    norm_bound: float | None,
    ranges: Mapping[str, tuple[float, float]] = {},
    *,
    finite: bool = True,
) -> LocalResult:
    """Decode a site's update.

    Args:
        update: The site's message.
        base: Model that the task began with.
        steps: Local steps that were asked for.
        codec: The run's codec, if it has one.
        norm_bound: The largest norm of what an update has of parameters, of floating buffers and of the
            shared vector, each; None means no bound.
        ranges: Least and greatest value of the metrics that the algorithm computes with.
        finite: Whether an update that is not finite is refused.

    Raises:
        InvalidUpdateError: The update is not accepted.
    """
    check_steps(update.steps, steps)
    layout, metrics = base.layout, check_metrics(update.metrics, ranges)
    lr = check_lr(float(update.lr))
    delta = _delta(update.delta, layout, codec)
    if isinstance(update.delta, bytes):
        bits = 8 * len(update.delta) + 64 * layout.integers + 32 * layout.shared
        metrics = {**metrics, "bits": bits}
    _vector("integers", update.integers, layout.integers, torch.int64)
    _near(update.integers, base.integers, INTEGERS_PER_STEP * update.steps)
    if update.shared is not None:
        _vector("shared", update.shared, layout.shared, torch.float32)
    result = LocalResult(delta, update.integers, metrics, lr, update.shared)
    norms = norms_of(result, layout)
    if not all(map(isfinite, norms.values())):
        # A norm may overflow though all values are finite.
        if update.shared is not None:
            _finite("shared", update.shared)
        if finite:
            _finite("update", delta)
    if norm_bound is not None:
        for part, norm in norms.items():
            if norm > norm_bound:
                reason = f"the norm of the update's {part} is {norm:g}, at most {norm_bound:g} is taken"
                raise InvalidUpdateError(reason, "norm")
    return replace(result, norms=norms)


def check_lr(lr: float) -> float:
    """A site's learning rate. Raises `InvalidUpdateError` for one that is out of range."""
    if not (isfinite(lr) and lr >= 0):
        raise InvalidUpdateError(f"lr = {lr}: the learning rate must be finite and at least 0", "not finite")
    if lr and not SMALLEST_LR <= lr <= LARGEST_LR:
        reason = f"lr = {lr:g}: the learning rate must be 0, or from {SMALLEST_LR:g} to {LARGEST_LR:g}"
        raise InvalidUpdateError(reason, "metrics")
    return lr


def _near(integers: Tensor, base: Tensor, most: int) -> None:
    """Check how far integer buffers have gone; the difference itself could overflow."""
    if base.numel() and bool(((integers < base - most) | (integers > base + most)).any()):
        reason = f"an integer buffer has changed by more than {most}, {INTEGERS_PER_STEP} for each local step"
        raise InvalidUpdateError(reason, "integers")


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
    if tensor.dtype != dtype or tensor.shape != (size,):
        found = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        wanted = f"{str(dtype).removeprefix('torch.')} [{size}]"
        raise InvalidUpdateError(f"the {what} is {found}, the model's layout asks for {wanted}", "layout")


def _finite(what: str, tensor: Tensor) -> None:
    if not bool(tensor.isfinite().all()):
        raise InvalidUpdateError(f"the {what} has values that are not finite (NaN or infinite)", "not finite")


@dataclass(frozen=True)
class UpdateForm:
    """The form of the updates of a run.

    Attributes:
        codec: Their compression; None means none.
        norm_bound: The largest norm of each part of an update; None means no bound.
        ranges: Least and greatest value of the metrics that the algorithm computes with.
    """

    codec: Codec | None
    norm_bound: float | None
    ranges: Mapping[str, tuple[float, float]]

    def check(self, update: UpdateSubmission, base: Model, steps: int, *, finite: bool = True) -> LocalResult:
        """Decode an update.

        Args:
            update: The site's message.
            base: The model that its task began with.
            steps: Local steps that were asked for.
            finite: Whether an update that is not finite is refused.

        Raises:
            InvalidUpdateError: The update is not well formed.
        """
        return check_update(update, base, steps, self.codec, self.norm_bound, self.ranges, finite=finite)


class UpdateCheck(Protocol):
    """Checks the updates of a run.

    Attributes:
        samples_unit: Of what the numbers of samples are multiples that sites tell.
    """

    @property
    def samples_unit(self) -> int:
        """Of what the numbers of samples are multiples that sites tell."""

    def check(
        self, site: SiteRecord, command: Train, update: UpdateSubmission, base: Model
    ) -> LocalResult | None:
        """Check an update.

        Args:
            site: The site.
            command: Its task.
            update: The site's message.
            base: The model that the task began with.

        Returns:
            The update; None means that the site is to send it anew, of which it has been told.

        Raises:
            InvalidUpdateError: The update is not accepted.
        """


class EachUpdateCheck:
    """Checks that an update is well formed, and has the guard judge it beside the others.

    Args:
        form: The form of an update.
        tensors: The global model, which knows the guard.
        directions: Direction and size of each site's updates, which follow those that are accepted.
    """

    samples_unit = 1

    def __init__(self, form: UpdateForm, tensors: GlobalModel, directions: SiteDirections) -> None:
        self._form, self._tensors, self._directions = form, tensors, directions

    def check(self, site: SiteRecord, command: Train, update: UpdateSubmission, base: Model) -> LocalResult:
        """Check an update, which the guard may refuse."""
        result = self._form.check(update, base, command.steps)
        reason = self._tensors.admit(site.client, command.task, update.steps, result)
        if reason is not None:
            log.warning("update refused", extra={"site": site.name, "reason": reason})
            raise InvalidUpdateError(reason, "guard")
        looked_at = self._directions.coordinates
        self._directions.add(site.client, result.delta.numpy()[looked_at], update.steps)
        return result
