"""A model whose inputs are standardized by fixed means and deviations."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Standardized(nn.Module):
    """(x − mean) / std, then a model. A missing value (NaN) becomes the mean.

    Means and deviations are constants of the module: they are not trained, do not travel with the weights,
    and are not in its state.

    Args:
        model: Takes [N, *shape].
        mean: Mean of each feature of a sample, flattened.
        std: Deviation of each; 0 means that the feature is only shifted.
        shape: Shape of a sample, without N.
    """

    def __init__(
        self, model: nn.Module, mean: Sequence[float], std: Sequence[float], shape: Sequence[int]
    ) -> None:
        super().__init__()
        self.model = model
        deviations = torch.tensor([value or 1.0 for value in std]).reshape(tuple(shape))
        self.register_buffer("mean", torch.tensor(mean).reshape(tuple(shape)), persistent=False)
        self.register_buffer("std", deviations, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The model's output for x [N, *shape]."""
        mean, std = self.get_buffer("mean"), self.get_buffer("std")
        output: Tensor = self.model(torch.nan_to_num((x - mean) / std, nan=0.0))
        return output
