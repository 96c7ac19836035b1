"""The learner of a server, which makes the first model and evaluates the others."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from offbeat.core.errors import UsageError
from offbeat.data.dataset import Dataset
from offbeat.data.federated import without_clients
from offbeat.local.loop_learner import LoopLearner
from offbeat.local.torch_learner import TorchLearner
from offbeat.local.training import Training
from offbeat.models.specs import ModelMaker, ModelSpec, NamedModel

Trained = TorchLearner | LoopLearner | ModelSpec | NamedModel | nn.Module | Callable[[], nn.Module]
"""What a server has sites train: a learner, or a model of any kind."""


def server_learner(
    model: Trained,
    training: Training | None = None,
    test: Any = None,
    sample_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    columns: Sequence[str] | None = None,
) -> TorchLearner | LoopLearner:
    """Make a server's learner, which has no clients.

    Args:
        model: A learner, which is returned; or a model.
        training: How sites train; None means the learner's, or the defaults.
        test: The test data, whatever `as_samples` takes; None means that it cannot evaluate.
        sample_shape: Shape of one sample (without N); None means that of the test data.
        classes: Number of classes; None means that of the test data.
        columns: Names of the columns of x, in the order of the model's inputs, to which each site puts its
            own; None means those of the test data, if they are a table.

    Raises:
        UsageError: A learner comes with what it has itself.
    """
    if isinstance(model, TorchLearner | LoopLearner):
        if any(given is not None for given in (training, test, sample_shape, classes, columns)):
            raise UsageError(
                "a learner has its own training options and test data: leave training, test, sample_shape, "
                "classes and columns out (None)"
            )
        return model
    data = without_clients(test, columns=columns)
    if not isinstance(model, nn.Module) and not callable(model):
        tested = data.test
        if isinstance(tested, Dataset) and isinstance(tested.x, Tensor):
            sample_shape, classes = sample_shape or tested.sample_shape, classes or tested.classes
        model = ModelMaker(model, sample_shape, classes)
    return TorchLearner(model, data, training or Training())


def evaluates(learner: TorchLearner | LoopLearner) -> bool:
    """Whether a server's learner can evaluate."""
    return learner.evaluates if isinstance(learner, LoopLearner) else learner.data.test is not None
