"""What a client keeps of its updates with error feedback (`offbeat.codec.ErrorFeedback`): its residual e."""

from torch import Tensor

from offbeat.core.codec import Codec
from offbeat.core.model import Tensors

KIND = "error_feedback"
RESIDUAL = "codec.residual"
"""Name of the residual in a client's state."""


def feeds_back(codec: Codec | None) -> bool:
    """Whether a codec has error feedback."""
    return codec is not None and codec.kind == KIND


def with_residual(codec: Codec | None, delta: Tensor, residual: Tensor | None) -> Tensor:
    """Δ + e, what is encoded of an update; Δ where the codec has no error feedback."""
    if residual is None or not feeds_back(codec):
        return delta
    return delta + residual.to(delta.device)


def with_new_residual(codec: Codec | None, state: Tensors, vector: Tensor, sent: Tensor) -> Tensors:
    """A client's state after an update: with the part of `vector` = Δ + e that was not sent."""
    return {**state, RESIDUAL: vector - sent} if feeds_back(codec) else state


def with_old_residual(state: Tensors, before: Tensors) -> Tensors:
    """A client's state after a task whose update is not sent: the residual is that before the task."""
    return {**state, RESIDUAL: before[RESIDUAL]} if RESIDUAL in before else state
