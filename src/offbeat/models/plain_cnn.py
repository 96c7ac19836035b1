"""Convolutional networks without normalisation that FedASMU trains on 32x32 images of three channels.

The paper gives the layers of one only (Table 2), and neither its strides nor its padding; the others are in
their usual form for 32x32. None has dropout.
"""

from torch import nn


def asmu_cnn(classes: int) -> nn.Sequential:
    """FedASMU's CNN (Table 2): 297,066 parameters with ten classes, 2,889,156 with a hundred.

    conv 64@2x2, ReLU, conv 32@2x2, ReLU, dense; stride 1 and no padding are our reading. [N, 3, 32, 32] to
    logits [N, classes].
    """
    return nn.Sequential(
        nn.Conv2d(3, 64, 2), nn.ReLU(), nn.Conv2d(64, 32, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 30 * 30, classes),
    )  # fmt: skip


def alexnet(classes: int) -> nn.Sequential:
    """AlexNet (Krizhevsky et al., 2012) for 32x32 images: 23,272,266 parameters with ten classes.

    Five 3x3 convolutions of 64 (stride 2), 192, 384, 256 and 256 channels, max-pool 2 after the first, the
    second and the last, dense 1024-4096-4096-classes; ReLU. [N, 3, 32, 32] to logits [N, classes].
    """
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(64, 192, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
        nn.Linear(4096, classes),
    )  # fmt: skip


def vgg11(classes: int, width: int = 64) -> nn.Sequential:
    """VGG-11 (Simonyan and Zisserman, 2015) for 32x32 images: 9,225,610 parameters with ten classes.

    Eight 3x3 convolutions of 64, 128, 256, 256, 512, 512, 512 and 512 channels with ReLU, max-pool 2 after
    the first, second, fourth, sixth and last, one dense layer; without BatchNorm. The convolutions' weights
    start normal with deviation (2 / fan-out)^½ (He et al., 2015): with PyTorch's own nothing is learnt at
    first. [N, 3, 32, 32] to logits [N, classes].

    Args:
        classes: Number of classes.
        width: Channels of the first convolution, 64 in the paper; all others have as many times as many.
    """
    layers: list[nn.Module] = []
    before = 3
    for group in ((1,), (2,), (4, 4), (8, 8), (8, 8)):
        for channels in (width * times for times in group):
            convolution = nn.Conv2d(before, channels, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
            layers += [convolution, nn.ReLU()]
            before = channels
        layers.insert(-1, nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, classes))
