"""LeNet-5 (LeCun et al., 1998), in its present form."""

import torch
from torch import nn


class LeNet5(nn.Module):
    """LeNet-5: 61,706 parameters for 1x28x28 and 62,006 for 3x32x32, both with ten classes.

    conv 6@5x5, ReLU, max-pool 2, conv 16@5x5, ReLU, max-pool 2, dense 400-120, ReLU, dense 120-84, ReLU,
    dense 84-classes; [N, channels, side, side] to logits [N, classes]. LeCun's images are 32 wide: ones of
    28 are padded by 2 on each side in the first convolution. ReLU, max-pooling, a full second convolution and
    a linear output stand for the squashing, trainable subsampling, partial connections and radial basis
    functions of 1998. No dropout.
    """

    def __init__(self, channels: int = 1, side: int = 28, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, kernel_size=5, padding=(32 - side) // 2)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [N, classes] of x [N, channels, side, side]."""
        # The order of pooling and ReLU changes no bit, and ReLU is cheaper after it.
        x = torch.relu(nn.functional.max_pool2d(self.conv1(x), 2))
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))
        x = torch.relu(self.fc2(torch.relu(self.fc1(x.flatten(1)))))
        logits: torch.Tensor = self.fc3(x)
        return logits
