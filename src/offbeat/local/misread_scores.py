"""Scores and targets that a loss takes for something else, seen in the calls of a learner's first task.

PyTorch computes with them without a word: probabilities where a loss takes logits, logits where it takes
logarithms of probabilities, and scores [N, 1] against targets [N], which become all pairs. The calls show it,
whoever has written the function that makes them. Only what is certain is reported: logits may all lie in
[0, 1], so a sigmoid is recognized by autograd's graph, and not by its values.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from offbeat.core.errors import UsageError
from offbeat.local.logged_once import LoggedOnce

_LOGITS: dict[Any, str] = {
    functional.cross_entropy: "nll_loss of its logarithm",
    functional.binary_cross_entropy_with_logits: "nn.BCELoss()",
    functional.multilabel_soft_margin_loss: "nn.BCELoss()",
}
"""Losses of logits, and the loss that takes probabilities."""
_LOGARITHMS = functional.nll_loss, functional.kl_div, functional.ctc_loss
"""Losses of logarithms of probabilities."""
_ELEMENTWISE = functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss
_NORMALIZING = (
    torch.softmax, Tensor.softmax, functional.softmax,
    torch.log_softmax, Tensor.log_softmax, functional.log_softmax,
    torch.sigmoid, Tensor.sigmoid, functional.sigmoid, functional.logsigmoid,
)  # fmt: skip
"""What a loss of one's own makes probabilities of logits with."""
_PROBABILITIES = {"Softmax": "softmax", "Sigmoid": "sigmoid", "Hardsigmoid": "sigmoid"}
_SHAPES = frozenset({
    "Alias", "Clone", "Expand", "Index", "Permute", "ReshapeAlias", "Select", "Slice", "Squeeze", "T",
    "ToCopy", "Transpose", "UnsafeView", "Unsqueeze", "View",
})  # fmt: skip
"""Nodes of autograd's graph that change no value."""
_ROUNDING = 1e-4  # of a sum of probabilities
_POSITIVE = 1e-2  # of a logarithm that is rounded


class ScoreWatch(TorchFunctionMode):
    """Watches the calls of a learner's loss.

    Args:
        warnings: Takes what is found.
    """

    def __init__(self, warnings: LoggedOnce) -> None:
        super().__init__()
        self._warnings, self._looked_at = warnings, set[Any]()
        self._targets: list[Tensor] = []
        self._in_step = False

    def of(self, target: Any, *, in_step: bool = False) -> "ScoreWatch":
        """This watch, for the loss of a batch.

        Args:
            target: The batch's target.
            in_step: Whether the module is called inside, which may make and use probabilities itself.
        """
        self._targets, self._in_step = [target] if isinstance(target, Tensor) else [], in_step
        return self

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if torch.compiler.is_compiling():
            # What looks at values is no part of a graph.
            return func(*args, **given)
        tensors = [value for value in (*args, *given.values()) if isinstance(value, Tensor)]
        if func in _ELEMENTWISE:
            _refuse_pairs(tensors, self._targets, 0)
        result = func(*args, **given)
        if not tensors:
            return result
        self._check_scores(func, given.get("input", tensors[0]))
        if isinstance(result, Tensor):
            _refuse_pairs(tensors, self._targets, result.numel())
            known = all(_among(tensor, self._targets) or not tensor.ndim for tensor in tensors)
            if known and self._targets and result.shape == self._targets[0].shape:
                # Such as the target in another dtype.
                self._targets.append(result)
        return result

    def _check_scores(self, func: Any, scores: Any) -> None:
        """Say of the first scores of each loss what it takes them for."""
        if func in self._looked_at or not isinstance(scores, Tensor) or not scores.is_floating_point():
            return
        name = getattr(func, "__name__", str(func))
        if func in _LOGARITHMS:
            self._looked_at.add(func)
            if bool((scores.detach() > _POSITIVE).any()):
                self._warnings.warn(
                    f"{name} takes logarithms of probabilities, which are at most 0, and gets scores above "
                    "0: give it what log_softmax makes of logits"
                )
        elif func in _LOGITS or (func in _NORMALIZING and not self._in_step):
            found = _made_by(scores)
            if func is functional.cross_entropy and scores.ndim > 1 and 1 < scores.shape[1] < scores.numel():
                self._looked_at.add(func)
                found = found or ("normalization" if _are_shares(scores) else None)
            if found is not None:
                instead = f", or give {_LOGITS[func]}" if func in _LOGITS else ""
                self._warnings.warn(
                    f"{'the loss calls ' * (func in _NORMALIZING)}{name}, which takes logits, and gets "
                    f"probabilities, made by a {found}: the training is slow and the loss wrong; leave the "
                    f"{found} out{instead}"
                )


def _refuse_pairs(tensors: Sequence[Tensor], targets: Sequence[Tensor], numel: int) -> None:
    """Raises `UsageError` where each score meets each target.

    Args:
        tensors: What a function is called with.
        targets: The tensors that are the batch's targets.
        numel: Number of elements of the function's result. 0 means that it pairs what it gets.
    """
    for target in tensors:
        if not _among(target, targets):
            continue
        for scores in tensors:
            paired = not numel or numel > max(scores.numel(), target.numel())
            if paired and scores.requires_grad and _differ_by_unit(scores, target):
                raise UsageError(
                    f"the loss broadcasts an output of shape {list(scores.shape)} against a target of shape "
                    f"{list(target.shape)}, so that each sample meets the targets of all: give them one "
                    "shape, such as that of output.squeeze(1) or target.unsqueeze(1); where all pairs are "
                    "meant, give the target as target.unsqueeze(0)"
                )


def _among(tensor: Tensor, known: Sequence[Tensor]) -> bool:
    return any(tensor is other for other in known)


def _differ_by_unit(scores: Tensor, target: Tensor) -> bool:
    """Whether the shapes of several samples are the same but for a dimension 1 of size 1."""
    s, t = tuple(scores.shape), tuple(target.shape)
    if not s or not t or s[0] != t[0] or s[0] == 1:
        return False
    return (s[:1] + s[2:] == t and s[1:2] == (1,)) or (t[:1] + t[2:] == s and t[1:2] == (1,))


def _made_by(scores: Tensor) -> str | None:
    """What has made the scores: "softmax" or "sigmoid"; None where autograd's graph shows neither."""
    node: Any = scores.grad_fn
    while node is not None:
        name = node.name().rpartition("::")[2].partition("Backward")[0]
        if name in _PROBABILITIES:
            return _PROBABILITIES[name]
        if name not in _SHAPES or not node.next_functions:
            return None
        node = node.next_functions[0][0]
    return None


def _are_shares(scores: Tensor) -> bool:
    """Whether the scores of each sample are no less than 0 and sum to 1: those of no logits do by chance."""
    scores = scores.detach().float()
    return bool((scores >= 0).all() & ((scores.sum(1) - 1).abs() <= _ROUNDING).all())
