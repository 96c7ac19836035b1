"""A site's data are tried before it takes part: one forward and backward pass, and the range of its labels.

Data that do not fit the run's model would fail in each task. A copy of the learner is tried, so the training
that follows has the same bits.
"""

from copy import copy
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from offbeat.core.errors import DivergedError, UsageError
from offbeat.core.events import ClientId
from offbeat.core.learner import LocalTask
from offbeat.core.objective import Objective
from offbeat.local.criterion import Criterion
from offbeat.local.learner import TorchLearner

_BINARY = functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits
_CLASSES = functional.cross_entropy, functional.nll_loss
_IGNORED = -100  # PyTorch's label of what has no class


class DataError(UsageError):
    """Data of a site that do not fit the run. The server is told `told`, which has nothing of the data."""

    told = "the data of this site do not fit the run, which its own log says more of"


def check_data(learner: TorchLearner, client: ClientId, seed: int, objective: Objective) -> None:
    """Try a site's data.

    Args:
        learner: The learner that trains here.
        client: The site's number in the run.
        seed: The run's seed.
        objective: The objective that it trains with.

    Raises:
        DataError: The model or the loss cannot take the data, or a label is out of range.
    """
    tried = copy(learner)  # with a module of its own
    tried.examples = None  # nothing leaves the site, and nothing is spent
    initial = tried.initial(seed).sharing(objective.shared_vectors)
    labels = getattr(learner.data.train, "y", None)
    if isinstance(labels, Tensor):
        labels = labels[learner.data.client_indices(client)]
    try:
        _check_labels(learner.criterion, labels)
        scores = tried.try_step(initial, LocalTask(0, client, 0, 1, seed), objective)
        _check_classes(learner.criterion, labels, scores)
    except DivergedError:  # not for its data: it is what the training says, then
        return
    except UsageError as error:
        told = str(error).removeprefix(f"client {client}: ").removeprefix(f"client {client}, task 0, ")
        raise DataError(f"the data of this site do not fit the run: {told}") from error


def _check_labels(criterion: Criterion, labels: Any) -> None:
    """Raises `UsageError` for labels that the loss takes and that mean nothing to it."""
    if not isinstance(labels, Tensor):
        return
    loss = criterion.loss
    low, high = float(labels.min()), float(labels.max())
    if (loss in _BINARY or isinstance(loss, nn.BCELoss | nn.BCEWithLogitsLoss)) and not 0 <= low <= high <= 1:
        raise UsageError(
            f"labels are {low:g} to {high:g}, and the run's loss, the binary cross entropy, takes 0 to 1: "
            "give the two classes as 0 and 1"
        )
    if _of_classes(criterion) and low == high == _ignored(criterion):
        raise UsageError(f"all labels are {low:g}, which stands for no class: there is nothing to train")


def _check_classes(criterion: Criterion, labels: Any, scores: Any) -> None:
    """Raises `UsageError` for classes that the model has no score of."""
    if not (_of_classes(criterion) and isinstance(scores, Tensor) and scores.ndim > 1):
        return
    if not isinstance(labels, Tensor) or labels.is_floating_point():
        return
    known, classes = labels[labels != _ignored(criterion)], scores.shape[1]
    low, high = int(known.min()), int(known.max())
    if not 0 <= low <= high < classes:
        raise UsageError(
            f"labels are {low} to {high}, and the run's model has {classes} classes, 0 to {classes - 1}: "
            "number the classes as the run does"
        )


def _of_classes(criterion: Criterion) -> bool:
    """Whether the loss is a cross entropy of classes."""
    loss = criterion.loss
    named = loss is None or loss in _CLASSES or isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    return named and criterion.step is None


def _ignored(criterion: Criterion) -> int:
    """The label of what has no class."""
    return int(getattr(criterion.loss, "ignore_index", _IGNORED))
