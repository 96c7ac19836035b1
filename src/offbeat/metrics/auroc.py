"""Area under the ROC curve, exact.

Ties decide. A softmax is rounded: it can differ in the last digit where logits say the same, as (0, 0, 1) and
(3, 3, 4) do, and be the same where two samples are very certain. So classes are ranked by their log odds,
which are computed from differences of logits.
"""

import torch
from torch import Tensor

from offbeat.metrics.classification import NAN, ClassificationMetric
from offbeat.metrics.kinds import IGNORE_INDEX, LabelledScores, PredictionKind

ROUNDING = 2.0**-49
"""Log odds of three and more classes that are computed of equal differences may differ by so much."""


class AUROC(ClassificationMetric):
    """Area under the ROC curve: P(score of a positive > score of a negative) + ½ P(they are equal).

    Computed from the Mann-Whitney statistic, ties by mid-rank (Hanley and McNeil 1982). Multi-class: the mean
    over classes, each against the rest, of the softmax; logits that differ by a constant, or in the order of
    the other classes, are a tie. Multi-label: the mean over labels. A class or label without both positives
    and negatives does not count; NaN if none does, if a score is NaN, or if the largest of a sample's
    multi-class logits is infinite. Same as scikit-learn's
    `roc_auc_score` (multi-class: `multi_class="ovr"`), where that is defined and its softmax splits no tie.

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
            if not self.probabilities:
                if classes < 2 or bool(scores.amax(1).isinf().any()):
                    return NAN
                scores = log_odds(scores)
            areas = [area(scores[:, k], target == k) for k in range(classes)]
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


def log_odds(logits: Tensor) -> Tensor:
    """log(p_k / (1 − p_k)) of the softmax p, so that equal differences of logits give equal numbers.

    With z the logits of a sample, it is z_k − log Σ_{j≠k} exp z_j. Of two classes that is their difference.

    Args:
        logits: float64 [M, C], C ≥ 2. The largest of each sample is finite.

    Returns:
        float64 [M, C]; of three and more classes their ranks within a class.
    """
    ordered = logits.sort(1, descending=True).values
    first, second = ordered[:, :1], ordered[:, 1:2]
    # The difference is NaN where both scores are −∞.
    others = (ordered[:, 1:] - second).nan_to_num(nan=0.0, neginf=-torch.inf)
    # log Σ exp(z_j − first) of all but first
    rest = (second - first) + others.exp().sum(1, keepdim=True).log()
    own = logits - first
    found = torch.where(own < 0, own - torch.log1p(rest.exp() - own.exp()), -rest)
    if logits.shape[1] == 2:
        return found
    return torch.stack([_ranks(column) for column in found.unbind(1)], 1)


def _ranks(values: Tensor) -> Tensor:
    """The rank of each value, float64 [M]; those that differ by rounding have the same."""
    ordered, order = values.sort()
    size = torch.minimum(ordered[1:].abs(), ordered[:-1].abs()).clamp(min=1.0)
    ranks = torch.zeros_like(values)
    ranks[order[1:]] = (ordered.diff() > ROUNDING * size).cumsum(0).double()
    return ranks


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
