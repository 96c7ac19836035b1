"""The update that leaves a site in a run with noise: the clipped change of the parameters."""

import torch
from torch import Tensor

from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.privacy.clipping import clipped


def private_update(result: LocalResult, base: Model, clip: float) -> LocalResult:
    """A result without metrics, buffers and shared vector; its parameters clipped, zeros if not finite.

    Args:
        result: The result of a task.
        base: Model that the task began with.
        clip: Greatest L2 norm of the parameters' change, computed in float64.
    """
    delta = clipped(result.delta, base.layout.parameters, clip)
    return LocalResult(delta, base.integers, {}, result.lr, None, result.state)


def failed_update(base: Model, state: dict[str, Tensor], lr: float = 0.0) -> LocalResult:
    """The zeros that stand for a training that has failed: that it failed would tell of the data."""
    return LocalResult(torch.zeros_like(base.values), base.integers, {}, lr, None, state)
