"""The two convolutional networks of the papers, for 28x28 images of one channel."""

import torch
from torch import nn


class WirelessCNN(nn.Module):
    """The network of the wireless paper's MNIST runs: 21,840 parameters with ten classes.

    conv 10@5x5, max-pool 2, ReLU, conv 20@5x5, max-pool 2, ReLU, dense 320-50, ReLU, dense 50-classes;
    [N, 1, 28, 28] to logits [N, classes]. No dropout.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, classes] of x [N, 1, 28, 28]."""
        x = torch.relu(nn.functional.max_pool2d(self.conv1(x), 2))
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))
        logits: torch.Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        return logits


class CompassCNN(nn.Module):
    """The MNIST network of FedCompass (Table 8): 582,026 parameters with ten classes.

    conv 32@5x5, ReLU, max-pool 2, conv 64@5x5, ReLU, max-pool 2, dense 1024-512, ReLU, dense 512-classes;
    [N, 1, 28, 28] to logits [N, classes]. No dropout.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=5)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=5)
        self.fc1 = nn.Linear(1024, 512)
        self.fc2 = nn.Linear(512, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, classes] of x [N, 1, 28, 28]."""
        # The order of pooling and ReLU changes no bit, and ReLU is cheaper after it.
        x = torch.relu(nn.functional.max_pool2d(self.conv1(x), 2))
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))
        logits: torch.Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        return logits
