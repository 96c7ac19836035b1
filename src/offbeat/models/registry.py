"""Models by name: a checked specification of each, built in or a user's function; and their makers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from torch import nn

from offbeat.core.errors import UsageError
from offbeat.core.types import Count
from offbeat.core.validation import checked_dataclass
from offbeat.models.cnn import CompassCNN, WirelessCNN
from offbeat.models.lenet import LeNet5
from offbeat.models.logistic import LogisticRegression
from offbeat.models.mlp import MLP
from offbeat.named import load_named, named_errors

_MNIST_SHAPE = (1, 28, 28)
_SHAPES = {
    "cnn_21840": [_MNIST_SHAPE],
    "cnn_582026": [_MNIST_SHAPE],
    "lenet5": [(channels, side, side) for channels in (1, 3) for side in (28, 32)],
}
"""Shapes of samples that a model takes; one that is not here takes any."""


@checked_dataclass
class LogisticSpec:
    """Logistic regression on samples of any shape."""

    name: Literal["logistic"] = "logistic"


@checked_dataclass
class MLPSpec:
    """A multilayer perceptron with ReLU on samples of any shape."""

    name: Literal["mlp"] = "mlp"
    hidden: Annotated[
        tuple[Count, ...],
        Field(min_length=1, max_length=1000, description="widths of the hidden layers, first to last"),
    ] = (64,)


@checked_dataclass
class WirelessCNNSpec:
    """The wireless paper's CNN: 1x28x28 images, 21,840 parameters with ten classes."""

    name: Literal["cnn_21840"] = "cnn_21840"


@checked_dataclass
class CompassCNNSpec:
    """FedCompass's CNN for MNIST (Table 8): 1x28x28 images, 582,026 parameters with ten classes."""

    name: Literal["cnn_582026"] = "cnn_582026"


@checked_dataclass
class LeNet5Spec:
    """LeNet-5: images of 28x28 or 32x32 with one channel or three, 61,706 parameters for 1x28x28."""

    name: Literal["lenet5"] = "lenet5"


ModelSpec = Annotated[
    LogisticSpec | MLPSpec | WirelessCNNSpec | CompassCNNSpec | LeNet5Spec, Field(discriminator="name")
]
"""Specification of a built-in model; `name` discriminates."""


@checked_dataclass
class NamedModel:
    """A user's own model: a function by name, which is called with the options and returns a module.

    Attributes:
        name: The function, "module:function"; ":name" for one that cannot be imported.
        options: Its named arguments.
    """

    name: Annotated[str, Field(pattern=r"^[^:\s]*:\S+$", max_length=500)]
    options: dict[str, Any] = Field(default_factory=dict)


def _is_own(spec: Any) -> str:
    name = spec.get("name") if isinstance(spec, dict) else getattr(spec, "name", None)
    return "own-function" if isinstance(spec, NamedModel) or ":" in str(name) else "built-in"


AnyModel = Annotated[
    Annotated[ModelSpec, Tag("built-in")] | Annotated[NamedModel, Tag("own-function")],
    Discriminator(_is_own),
    BeforeValidator(lambda spec: {"name": spec} if isinstance(spec, str) else spec),
]
"""Specification of any model: a built-in one, or a user's; a string is its name."""


@plain_dataclass(frozen=True)
class ModelMaker:
    """Makes the module of a specification, whose initial weights come from torch's global generator.

    Attributes:
        spec: The specification.
        sample_shape: Shape of one sample (without N), for a built-in model. None means that it is unknown.
        classes: Number of classes, for a built-in model. None means that it is unknown.
        option: The option that names the model, for messages.
        load: Finds a user's function, given its name and the option.
    """

    spec: Any  # ModelSpec | NamedModel
    sample_shape: tuple[int, ...] | None = None
    classes: int | None = None
    option: str = "model"
    load: Callable[[str, str], Callable[..., Any]] = load_named

    def __call__(self) -> nn.Module:
        """Make the module. Raises `UsageError` where it cannot be made; one line."""
        if not isinstance(self.spec, NamedModel):
            if self.sample_shape is None or self.classes is None:
                raise UsageError(
                    f"model {self.spec.name!r} is made for the data's sample shape and number of classes: "
                    "give sample_shape and classes, or data of which they are known"
                )
            return build(self.spec, self.sample_shape, self.classes)
        make = self.load(self.spec.name, self.option)
        with named_errors(self.spec.name, self.option):
            module = make(**self.spec.options)
        if not isinstance(module, nn.Module):
            raise UsageError(
                f"{self.option} {self.spec.name} returned a {type(module).__name__}: it must return a "
                "torch.nn.Module"
            )
        return module


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
