"""Models by name: a checked specification of each, built in or a user's function; and their makers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import fields
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from torch import nn

from offbeat.allowed import NOTHING, Load
from offbeat.core.errors import UsageError
from offbeat.core.types import Count, Finite, NonNegative
from offbeat.core.validation import checked_dataclass
from offbeat.models.bert import BertClassifier
from offbeat.models.cnn import CompassCNN, WirelessCNN
from offbeat.models.efficientnet import EfficientNetB0
from offbeat.models.lenet import LeNet5
from offbeat.models.logistic import LogisticRegression
from offbeat.models.mlp import MLP
from offbeat.models.plain_cnn import alexnet, asmu_cnn, vgg11
from offbeat.models.resnet import ResNet
from offbeat.models.standardized import Standardized
from offbeat.models.textcnn import TextCNN
from offbeat.models.unet3d import UNet3D
from offbeat.named import named_errors


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


@checked_dataclass
class AsmuCNNSpec:
    """FedASMU's CNN (Table 2): 3x32x32 images, 297,066 parameters with ten classes."""

    name: Literal["cnn_297066"] = "cnn_297066"


@checked_dataclass
class AlexNetSpec:
    """AlexNet for 3x32x32 images: 23,272,266 parameters with ten classes."""

    name: Literal["alexnet"] = "alexnet"


@checked_dataclass
class VGG11Spec:
    """VGG-11 without BatchNorm for 3x32x32 images: 9,225,610 parameters with ten classes."""

    name: Literal["vgg11"] = "vgg11"
    width: Annotated[
        Count, Field(description="channels of the first convolution; the others have 2, 4 or 8 times as many")
    ] = 64


@checked_dataclass
class ResNet18Spec:
    """ResNet-18 for small images (FedCompass, Table 10): 11,173,962 parameters with ten classes."""

    name: Literal["resnet18"] = "resnet18"


@checked_dataclass
class ResNet20Spec:
    """ResNet-20 with 1x1 shortcuts for small images: 278,324 parameters with a hundred classes."""

    name: Literal["resnet20"] = "resnet20"


@checked_dataclass
class EfficientNetB0Spec:
    """EfficientNet-B0 for images: 4,017,796 parameters with eight classes."""

    name: Literal["efficientnet_b0"] = "efficientnet_b0"


@checked_dataclass
class UNet3DSpec:
    """3D U-Net of three levels (FLamby) that segments volumes: 246,156 parameters with two classes."""

    name: Literal["unet3d"] = "unet3d"


@checked_dataclass
class TextCNNSpec:
    """TextCNN on token ids: 2,120,902 parameters with two classes."""

    name: Literal["textcnn"] = "textcnn"
    vocabulary: Annotated[Count, Field(description="number of token ids, as many as the data's")] = 20_000
    width: Annotated[Count, Field(description="width of the embedding")] = 100
    filters: Annotated[Count, Field(description="filters over 3, over 4 and over 5 tokens")] = 100


@checked_dataclass
class BertSpec:
    """BERT on token ids, from the extra `hf`: 4,386,178 parameters with two classes (Tiny-BERT)."""

    name: Literal["bert"] = "bert"
    layers: Annotated[Count, Field(description="number of layers; 12 for BERT-base")] = 2
    width: Annotated[Count, Field(description="width of a layer; 768 for BERT-base")] = 128
    heads: Annotated[Count, Field(description="attention heads, a divisor of width; 12 for BERT-base")] = 2
    vocabulary: Annotated[Count, Field(description="number of token ids")] = 30_522
    lora: Annotated[
        Count | None, Field(description="rank of LoRA's adapters of queries and values; None: all weights")
    ] = None
    weights: Annotated[str | None, Field(description="folder of a pretrained BERT; None: random weights")] = (
        None
    )

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads {self.heads} is no divisor of width {self.width}; choose one")
        return self


ModelSpec = Annotated[
    LogisticSpec
    | MLPSpec
    | WirelessCNNSpec
    | CompassCNNSpec
    | LeNet5Spec
    | AsmuCNNSpec
    | AlexNetSpec
    | VGG11Spec
    | ResNet18Spec
    | ResNet20Spec
    | EfficientNetB0Spec
    | UNet3DSpec
    | TextCNNSpec
    | BertSpec,
    Field(discriminator="name"),
]
"""Specification of a built-in model; `name` discriminates."""


@checked_dataclass
class StandardizedSpec:
    """A built-in model behind fixed means and deviations of the features of its samples."""

    model: ModelSpec
    mean: Annotated[tuple[Finite, ...], Field(min_length=1, description="mean of each feature, flattened")]
    std: Annotated[tuple[NonNegative, ...], Field(min_length=1, description="deviation of each feature")]
    name: Literal["standardized"] = "standardized"

    @model_validator(mode="after")
    def _of_one_length(self) -> Self:
        if len(self.mean) != len(self.std):
            raise ValueError(f"mean has {len(self.mean)} features and std {len(self.std)}: give one of each")
        return self


Shape = tuple[int, ...]


_FROM_DATA: Mapping[str, Callable[[Shape, int], int]] = {
    "inputs": lambda shape, _: math.prod(shape),
    "channels": lambda shape, _: shape[0],
    "side": lambda shape, _: shape[1],
    "classes": lambda _, classes: classes,
}


@plain_dataclass(frozen=True)
class ModelEntry:
    """A built-in model.

    Attributes:
        spec: Class of its specification.
        builder: Makes the module. Its parameters `inputs`, `channels`, `side` and `classes` are those of the
            data; the others have the names of the specification's options.
        parameters: Number of its parameters with its defaults, for its example.
        used: The papers' use of it.
        takes: Shapes of samples that it takes; 0 is any length. Empty means any shape.
        datasets: Datasets of such samples.
        example: Shape of a sample and number of classes, of which its parameters are counted.
    """

    spec: type[Any]
    builder: Callable[..., nn.Module]
    parameters: int
    used: str = ""
    takes: tuple[Shape, ...] = ()
    datasets: tuple[str, ...] = ()
    example: tuple[Shape, int] = ((1, 28, 28), 10)

    def fits(self, shape: Shape) -> bool:
        """Whether it takes samples of a shape."""
        return not self.takes or any(
            len(shape) == len(own) and all(b in (0, a) for a, b in zip(shape, own, strict=True))
            for own in self.takes
        )

    def make(self, spec: Any, shape: Shape, classes: int) -> nn.Module:
        """Make the module of a specification, the shape of a sample and the number of classes."""
        of_data = signature(self.builder).parameters.keys() & _FROM_DATA
        options = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name != "name"}
        return self.builder(**{name: _FROM_DATA[name](shape, classes) for name in of_data}, **options)


_MNIST, _CIFAR = ("mnist", "fashion_mnist"), ("cifar10", "cifar100")
_SMALL_IMAGES = (*_CIFAR, "tiny_imagenet", *_MNIST)
_CIFAR10 = ((3, 32, 32), 10)
_TEXTS = ("imdb", "sent140", "sst2")

_ENTRIES = (
    ModelEntry(LogisticSpec, LogisticRegression, 7_850),
    ModelEntry(MLPSpec, MLP, 50_890),
    ModelEntry(WirelessCNNSpec, WirelessCNN, 21_840, "wireless, MNIST", ((1, 28, 28),), _MNIST),
    ModelEntry(CompassCNNSpec, CompassCNN, 582_026, "FedCompass, MNIST (Table 8)", ((1, 28, 28),), _MNIST),
    ModelEntry(
        LeNet5Spec, LeNet5, 61_706, "FedASMU, Fashion-MNIST, CIFAR-10, CIFAR-100",
        tuple((channels, side, side) for channels in (1, 3) for side in (28, 32)), (*_MNIST, *_CIFAR),
    ),
    ModelEntry(
        AsmuCNNSpec, asmu_cnn, 297_066, "FedASMU, CIFAR-10, CIFAR-100 (Table 2)",
        ((3, 32, 32),), _CIFAR, _CIFAR10,
    ),
    ModelEntry(
        AlexNetSpec, alexnet, 23_272_266, "FedASMU, CIFAR-10, CIFAR-100", ((3, 32, 32),), _CIFAR, _CIFAR10
    ),
    ModelEntry(VGG11Spec, vgg11, 9_225_610, "FedASMU, CIFAR-10, CIFAR-100", ((3, 32, 32),), _CIFAR, _CIFAR10),
    ModelEntry(
        ResNet18Spec, partial(ResNet, width=64, blocks=(2, 2, 2, 2)), 11_173_962,
        "FedCompass (Table 10), FedFa, CIFAR-10", ((0, 0, 0),), _SMALL_IMAGES, _CIFAR10,
    ),
    ModelEntry(
        ResNet20Spec, partial(ResNet, width=16, blocks=(3, 3, 3)), 278_324,
        "FedASMU, CIFAR-100, Tiny-ImageNet", ((0, 0, 0),), _SMALL_IMAGES, ((3, 32, 32), 100),
    ),
    ModelEntry(
        EfficientNetB0Spec, EfficientNetB0, 4_017_796, "FedCompass, Fed-ISIC2019", ((3, 0, 0),),
        ("fed_isic2019", "tiny_imagenet"), ((3, 200, 200), 8),
    ),
    ModelEntry(
        UNet3DSpec, UNet3D, 246_156, "FedCompass, Fed-IXI", ((1, 48, 60, 48),), ("fed_ixi",),
        ((1, 48, 60, 48), 2),
    ),
    ModelEntry(TextCNNSpec, TextCNN, 2_120_902, "FedASMU, IMDb", ((0,),), _TEXTS, ((400,), 2)),
    ModelEntry(
        BertSpec, BertClassifier, 4_386_178, "FedFa, Sent140 (Tiny-BERT), SST-2 (base, LoRA)", ((0,),),
        _TEXTS, ((64,), 2),
    ),
)  # fmt: skip
MODELS: Mapping[str, ModelEntry] = MappingProxyType({entry.spec.name: entry for entry in _ENTRIES})
"""The built-in models by name."""


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
    if name == "standardized":
        return "standardized-model"
    return "own-function" if isinstance(spec, NamedModel) or ":" in str(name) else "built-in"


AnyModel = Annotated[
    Annotated[ModelSpec, Tag("built-in")]
    | Annotated[NamedModel, Tag("own-function")]
    | Annotated[StandardizedSpec, Tag("standardized-model")],
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

    spec: Any  # ModelSpec | StandardizedSpec | NamedModel
    sample_shape: tuple[int, ...] | None = None
    classes: int | None = None
    option: str = "model"
    load: Load = NOTHING.load

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


def build(spec: ModelSpec | StandardizedSpec, sample_shape: Sequence[int], classes: int) -> nn.Module:
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
    if isinstance(spec, StandardizedSpec):
        if len(spec.mean) != math.prod(shape):
            raise UsageError(
                f"model 'standardized' has the means of {len(spec.mean)} features, and samples of shape "
                f"{shape} have {math.prod(shape)}: give the statistics of these data"
            )
        return Standardized(build(spec.model, shape, classes), spec.mean, spec.std, shape)
    entry = MODELS[spec.name]
    # A model for images of any size would take rows of pixels for channels.
    channels_last = len(shape) == 3 and shape[-1] in (1, 3) and shape[0] > 3 and bool(entry.takes)
    if not entry.fits(shape) or channels_last:
        remedy = "use such a dataset, or the model 'logistic' or 'mlp'"
        if channels_last and entry.fits((shape[2], *shape[:2])):
            remedy = "put the channels of images first, by x.permute(0, 3, 1, 2)"
        elif len(shape) == 2 and entry.fits((1, *shape)):
            remedy = "give images their one channel, by x.unsqueeze(1)"
        raise UsageError(
            f"model {spec.name!r} with samples of shape {shape}: it takes {shown_shapes(entry)}, as of "
            f"{' or '.join(entry.datasets)}; {remedy}"
        )
    return entry.make(spec, shape, classes)


def shown_shapes(entry: ModelEntry) -> str:
    """Shapes of samples that a model takes, in words."""
    told = (str(tuple(side or "any" for side in own)).replace("'", "") for own in entry.takes)
    return " or ".join(told) or "any"


def parameter_count(model: nn.Module) -> int:
    """Number of elements of all parameters of `model`; buffers do not count."""
    return sum(parameter.numel() for parameter in model.parameters())
