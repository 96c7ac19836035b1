"""Perplexity of language models."""

import torch
from torch import Tensor
from torch.nn import functional

from offbeat.metrics.classification import NAN, ClassificationMetric
from offbeat.metrics.kinds import IGNORE_INDEX, LabelledScores, PredictionKind


class Perplexity(ClassificationMetric):
    """Perplexity exp(−(1/M) Σ ln p(target)) over the M targets that are not ignored; lower is better.

    p is the softmax of multi-class scores. ∞ where a target has probability 0 or the mean is too large to be
    exponentiated, NaN without a target or with scores of NaN. Jelinek et al. 1977.

    Args:
        probabilities: Scores are probabilities in [0, 1]. False means logits.
        class_dim: Dimension of the classes in multi-class scores. None means that the shapes tell.
    """

    higher_is_better = False
    kinds = frozenset({PredictionKind.MULTICLASS})

    def compute(self) -> float:
        """The perplexity, at least 1."""
        if not self._total:
            return NAN
        return float(torch.tensor(self._sum / self._total, dtype=torch.float64).exp())

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        self._sum, self._total = 0.0, 0

    def _count(self, batch: LabelledScores) -> None:
        self._sum += float(_surprise(batch, self.probabilities).cpu().double().sum())
        self._total += int(batch.counted.sum())


def _surprise(batch: LabelledScores, probabilities: bool) -> Tensor:
    """−ln p(target) of each target, 0 where ignored; float32, or float64 for scores of float64."""
    scores, target = batch.scores, batch.target
    if batch.class_dim == -1:
        # Flattening gives a view: a copy of a language model's logits would be large.
        scores, target = scores.flatten(0, -2), target.flatten()
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if probabilities:
        return functional.nll_loss(scores.log(), target, reduction="none", ignore_index=IGNORE_INDEX)
    return functional.cross_entropy(scores, target, reduction="none", ignore_index=IGNORE_INDEX)
