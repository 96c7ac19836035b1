"""Registry of models by name: a checked specification of each, and `build` to make the module."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from offbeat.core.errors import UsageError
from offbeat.core.types import Count
from offbeat.core.validation import STRICT
from offbeat.models.cnn import CompassCNN, WirelessCNN
from offbeat.models.lenet import LeNet5
from offbeat.models.logistic import LogisticRegression
from offbeat.models.mlp import MLP

_MNIST_SHAPE = (1, 28, 28)
_SHAPES = {
    "cnn_21840": [_MNIST_SHAPE],
    "cnn_582026": [_MNIST_SHAPE],
    "lenet5": [(channels, side, side) for channels in (1, 3) for side in (28, 32)],
}
"""Shapes of samples that a model takes; one that is not here takes any."""


@dataclass(frozen=True, config=STRICT)
class LogisticSpec:
    """Logistic regression on samples of any shape."""

    name: Literal["logistic"] = "logistic"


@dataclass(frozen=True, config=STRICT)
class MLPSpec:
    """A multilayer perceptron with ReLU on samples of any shape."""

    name: Literal["mlp"] = "mlp"
    hidden: Annotated[
        tuple[Count, ...],
        Field(min_length=1, max_length=1000, description="widths of the hidden layers, first to last"),
    ] = (64,)


@dataclass(frozen=True, config=STRICT)
class WirelessCNNSpec:
    """The wireless paper's CNN: 1x28x28 images, 21,840 parameters with ten classes."""

    name: Literal["cnn_21840"] = "cnn_21840"


@dataclass(frozen=True, config=STRICT)
class CompassCNNSpec:
    """FedCompass's CNN for MNIST (Table 8): 1x28x28 images, 582,026 parameters with ten classes."""

    name: Literal["cnn_582026"] = "cnn_582026"


@dataclass(frozen=True, config=STRICT)
class LeNet5Spec:
    """LeNet-5: images of 28x28 or 32x32 with one channel or three, 61,706 parameters for 1x28x28."""

    name: Literal["lenet5"] = "lenet5"


ModelSpec = Annotated[
    LogisticSpec | MLPSpec | WirelessCNNSpec | CompassCNNSpec | LeNet5Spec, Field(discriminator="name")
]
"""Specification of any model; `name` discriminates."""


def build(spec: ModelSpec, sample_shape: Sequence[int], classes: int) -> nn.Module:
    """Build a freshly initialised module, which gives logits [N, classes].

    The initial weights come from torch's global generator: seed it before.

    Args:
        spec: The model's specification.
        sample_shape: Shape of one sample, without N.
        classes: Number of classes, at least 1.

    Raises:
        UsageError: The model does not take samples of that shape, or there is no class.
    """
    shape = tuple(int(side) for side in sample_shape)
    if classes < 1:
        raise UsageError(f"classes {classes}: must be at least 1; pass the number of classes of the dataset")
    if shape not in (allowed := _SHAPES.get(spec.name, [shape])):
        raise UsageError(
            f"model {spec.name!r} with samples of shape {shape}: it takes {' or '.join(map(str, allowed))}, "
            "as of mnist or fashion_mnist; use one of those datasets, or the model 'logistic' or 'mlp'"
        )
    match spec:
        case LogisticSpec():
            return LogisticRegression(math.prod(shape), classes)
        case MLPSpec():
            return MLP(math.prod(shape), classes, spec.hidden)
        case WirelessCNNSpec():
            return WirelessCNN(classes)
        case CompassCNNSpec():
            return CompassCNN(classes)
        case LeNet5Spec():
            return LeNet5(shape[0], shape[1], classes)


def parameter_count(model: nn.Module) -> int:
    """Number of elements of all parameters of `model`; buffers do not count."""
    return sum(parameter.numel() for parameter in model.parameters())
