"""A learner as names and numbers, for the record of a run."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import TypeAdapter
from torch import Tensor, nn

from offbeat.data.dataset import Dataset, Samples
from offbeat.local.losses import LOSSES, Loss
from offbeat.local.torch_learner import TorchLearner
from offbeat.local.training import Training
from offbeat.models.specs import AnyModel, ModelMaker, NamedModel
from offbeat.named import name_of

_MODEL: TypeAdapter[Any] = TypeAdapter(AnyModel)
_TRAINING: TypeAdapter[Training] = TypeAdapter(Training)
# These options say where and how fast a training runs, not what comes out.
_BESIDE = ("device", "channels_last", "cuda_graph", "evaluation_batch_size")


@dataclass(frozen=True)
class LearnerDescription:
    """A learner in plain values; a name that begins with ":" belongs to an object that cannot be imported.

    Attributes:
        model: The model's specification.
        sample_shape: Shape of one sample (without N), for a built-in model.
        classes: Number of classes, for a built-in model.
        sample: dtype and shape of one sample, where the samples are one tensor.
        personal: Patterns of the tensors that stay at the clients.
        loss: Name of the loss; "" means the learner's default.
        step: Name of the function that gives the loss of a module and a batch; "" means none.
        evaluate: Name of the function that evaluates a module on a batch; "" means none.
        metrics: Names of metrics or functions by the metrics' names. None means the default.
        frozen: Digest of the parameters that are not trained; "" means none.
    """

    model: dict[str, Any]
    sample_shape: tuple[int, ...] | None
    classes: int | None
    sample: tuple[str, tuple[int, ...]] | None
    personal: tuple[str, ...]
    loss: str
    step: str
    evaluate: str
    metrics: dict[str, str] | None
    frozen: str


def describe_learner(learner: TorchLearner, seed: int) -> LearnerDescription:
    """Describe a learner under a run's seed, which draws the parameters that are not trained."""
    criterion, metrics, train = learner.criterion, learner.metrics, learner.data.train
    named = dict(metrics.items()) if isinstance(metrics, Mapping) else {name: name for name in metrics or ()}
    maker = model_of(learner.module)
    return LearnerDescription(
        model=_MODEL.dump_python(maker.spec, mode="json"),
        sample_shape=maker.sample_shape,
        classes=maker.classes,
        sample=sample_form(train),
        personal=learner.personal,
        loss=_loss_name(criterion.loss) if criterion.loss else "",
        step=name_of(criterion.step) if criterion.step else "",
        evaluate=name_of(criterion.evaluate) if criterion.evaluate else "",
        metrics=None
        if metrics is None
        else {n: m if isinstance(m, str) else name_of(m) for n, m in named.items()},
        frozen=learner.frozen_digest(seed),
    )


def sample_form(samples: Samples | None) -> tuple[str, tuple[int, ...]] | None:
    """dtype and shape of one of these samples; None where there are none, or they are not one tensor."""
    if not isinstance(samples, Dataset) or not isinstance(samples.x, Tensor):
        return None
    return str(samples.x.dtype).removeprefix("torch."), samples.sample_shape


def describe_training(training: Training) -> dict[str, Any]:
    """The training options on which a result depends. A function is given by its name."""
    told: dict[str, Any] = _TRAINING.dump_python(training, mode="json", fallback=name_of, warnings="none")
    return {key: value for key, value in told.items() if key not in _BESIDE}


def model_of(module: nn.Module | Callable[[], nn.Module]) -> ModelMaker:
    """A description of a learner's module or function."""
    match module:
        case ModelMaker():
            return module
        case partial(func=function, args=(), keywords=options) if _is_plain(options):
            return ModelMaker(NamedModel(name_of(function), options))
        case _:
            return ModelMaker(NamedModel(name_of(module)))


def _is_plain(options: Mapping[str, Any]) -> bool:
    """Whether options are JSON values."""
    try:
        return bool(json.loads(json.dumps(options)) == options)
    except (TypeError, ValueError):
        return False


def _loss_name(loss: Loss) -> str:
    return next((name for name, known in LOSSES.items() if known is loss), name_of(loss))
