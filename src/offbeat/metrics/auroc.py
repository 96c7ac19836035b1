"""Area under the ROC curve, exact."""

import torch
from torch import Tensor

from offbeat.metrics.classification import NAN, ClassificationMetric
from offbeat.metrics.kinds import IGNORE_INDEX, LabelledScores, PredictionKind


class AUROC(ClassificationMetric):
    """Area under the ROC curve: P(score of a positive > score of a negative) + ½ P(they are equal).

    Computed from the Mann-Whitney statistic, ties by mid-rank (Hanley and McNeil 1982). Multi-class: the mean
    over classes, each against the rest, of the softmax. Multi-label: the mean over labels. A class or label
    without both positives and negatives does not count; NaN if none does, or if a score is NaN. Same as
    scikit-learn's `roc_auc_score` (multi-class: `multi_class="ovr"`), where that is defined.

    All scores are kept until `reset`, on the CPU.

    Args:
        probabilities: Scores are probabilities in [0, 1]. False means logits.
        class_dim: Dimension of the classes in multi-class scores. None means that the shapes tell.
    """

    def compute(self) -> float:
        """The area, in [0, 1], or NaN."""
        if self._what is None:
            return NAN
        kind, classes = self._what
        scores, target = torch.cat(self._scores).double(), torch.cat(self._target)
        if kind is PredictionKind.BINARY:
            return area(scores, target == 1)
        if bool(scores.isnan().any()):
            return NAN
        if kind is PredictionKind.MULTICLASS:
            values = scores if self.probabilities else scores.log_softmax(1)
            areas = [area(values[:, k], target == k) for k in range(classes)]
        else:
            kept = target != IGNORE_INDEX
            areas = [area(scores[kept[:, k], k], target[kept[:, k], k] == 1) for k in range(classes)]
        return float(torch.tensor(areas, dtype=torch.float64).nanmean())

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        self._scores: list[Tensor] = []
        self._target: list[Tensor] = []

    def _count(self, batch: LabelledScores) -> None:
        scores, target = batch.rows()
        self._scores.append(scores.to("cpu", copy=True))
        self._target.append(target.to("cpu", copy=True))


def area(scores: Tensor, positive: Tensor) -> float:
    """Area under the ROC curve of one class, from integer counts of pairs.

    Args:
        scores: Scores, floating point [M].
        positive: Whether each target is positive, bool [M].

    Returns:
        (2 · pairs in order + ties) / (2 · pairs), over the pairs of a positive and a negative; NaN without a
        pair or with a score that is NaN.
    """
    positives = int(positive.sum())
    pairs = positives * (len(positive) - positives)
    if not pairs or bool(scores.isnan().any()):
        return NAN
    values, at, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    above = at[positive].bincount(minlength=len(values))
    equal = counts - above
    below = equal.cumsum(0) - equal
    return int((above * (2 * below + equal)).sum()) / (2 * pairs)
