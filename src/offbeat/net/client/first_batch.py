"""A site's data are tried before it takes part: one forward and backward pass, and the range of its labels.

Data that do not fit the run's model would fail in each task. A copy of the learner is tried, so the training
that follows has the same bits. Which loss the labels go to is seen in that pass, whoever has written the
function that calls it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId
from offbeat.core.learner import LocalTask
from offbeat.core.objective import Objective
from offbeat.data.dataset import Batch, Dataset
from offbeat.local.criterion import split
from offbeat.local.torch_learner import TorchLearner
from offbeat.net.run_spec import in_one_line

_BINARY = functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits
_CLASSES = functional.cross_entropy, functional.nll_loss
# PyTorch's label of samples without a class.
_IGNORED = -100


class DataError(UsageError):
    """Data of a site that do not fit the run. The server gets `told`, which has nothing of the data."""

    told = "the data of this site do not fit the run, which its own log says more of"


class TrialError(DataError):
    """An unexpected failure of a run at this site, whose text may have values of the data."""

    told = "this site cannot carry out the run's plan, which its own log says more of"


def trying() -> AbstractContextManager[None]:
    """A context in which a plan is tried on a site's data: whatever it raises is one line.

    Raises:
        TrialError: It has raised what is no error of Offbeat's.
    """
    return in_one_line("the run's plan cannot be carried out on the data of this site", TrialError)


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
    # The copy makes a module of its own.
    tried = copy(learner)
    # The trial sends nothing and spends no privacy.
    tried.examples = None
    losses = _Losses()
    try:
        initial = tried.initial(seed).sharing(objective.shared_vectors)
        with losses:
            batch = tried.try_step(initial, LocalTask(0, client, 0, 1, seed), objective)
        _check_labels(losses.calls, batch, _labels(learner, client))
    except UsageError as error:
        raise data_error(error, client) from error


def data_error(error: UsageError, client: ClientId) -> DataError:
    """The error about data of a site, from the refusal of the data."""
    told = str(error).removeprefix(f"client {client}: ").removeprefix(f"client {client}, task 0, ")
    return DataError(f"the data of this site do not fit the run: {told}")


def _labels(learner: TorchLearner, client: ClientId) -> Tensor | None:
    """All labels of a site; None where they are read sample by sample."""
    train = learner.data.train
    labels = train.y if isinstance(train, Dataset) else None
    return labels[learner.data.client_indices(client)] if isinstance(labels, Tensor) else None


class _LossCall(NamedTuple):
    """A call of a loss: its function, the scores, the labels, and the label that stands for no class."""

    function: Callable[..., Tensor]
    scores: Tensor
    labels: Tensor
    ignored: int


class _Losses(TorchFunctionMode):
    """Notes the calls of losses with labels of a range."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_LossCall] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func in _BINARY or func in _CLASSES:
            named = {**dict(zip(("input", "target"), args, strict=False)), **given}
            scores, labels = named["input"].detach(), named["target"].detach()
            self.calls.append(_LossCall(func, scores, labels, given.get("ignore_index", _IGNORED)))
        return func(*args, **given)


def _check_labels(calls: Sequence[_LossCall], batch: Batch, labels: Tensor | None) -> None:
    """Raises `UsageError` for labels that mean nothing to the loss.

    Args:
        calls: The calls of losses in the step that was tried.
        batch: The samples of its first call.
        labels: All labels of the site. None means that those of the calls are all that is known.
    """
    for number, call in enumerate(calls):
        whole = labels is not None and not number and _same(split(batch)[1], call.labels)
        # If the loss gets the labels unchanged, all labels of the site can be checked.
        known = labels if labels is not None and whole else call.labels
        if call.function in _BINARY:
            _check_binary(known)
        elif not known.is_floating_point():
            # A floating-point target is a probability of each class.
            _check_classes(known, call.scores.shape[-1 if call.scores.ndim == 1 else 1], call.ignored, whole)


def _check_binary(labels: Tensor) -> None:
    low, high = float(labels.min()), float(labels.max())
    if not 0 <= low <= high <= 1:
        raise UsageError(
            f"labels are {low:g} to {high:g}, and the run's loss, the binary cross entropy, takes 0 to 1: "
            "give the two classes as 0 and 1"
        )


def _check_classes(labels: Tensor, classes: int, ignored: int, whole: bool) -> None:
    known = labels[labels != ignored]
    if not len(known):
        if not whole:
            return
        raise UsageError(f"all labels are {ignored}, which stands for no class: there is nothing to train")
    low, high = int(known.min()), int(known.max())
    if not 0 <= low <= high < classes:
        raise UsageError(
            f"labels are {low} to {high}, and the run's model has {classes} classes, 0 to {classes - 1}: "
            "number the classes as the run does"
        )


def _same(target: Any, labels: Tensor) -> bool:
    """Whether the labels of a call are the batch's, in whatever shape."""
    if not isinstance(target, Tensor) or target.numel() != labels.numel():
        return False
    return bool((target.flatten() == labels.flatten()).all())
