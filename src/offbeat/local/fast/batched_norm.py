"""Batch norm of many clients together: each client's statistics are those of its own batch.

On a CPU each client's samples go through PyTorch's batch norm by themselves, with the bits that they have
there. Elsewhere all clients are normalised at once, by sums in which only the samples of their batches count.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from offbeat.local.fast.active_clients import ActiveClients

BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""Layers that `ClientBatchNorm` stands in for."""


Values = Callable[[], Tensor]
"""The active clients' values of a tensor, [active, channels]."""


class ClientBatchNorm(nn.Module):
    """A batch norm layer for the samples [active · samples, channels, ...] of the clients at work.

    Args:
        layer: The layer, in training.
        clients: The clients at work.
        affine: Gives weight and bias, where the layer has them.
        running: Gives running mean and variance, which are written to, where the layer has them.
    """

    def __init__(
        self, layer: _BatchNorm, clients: ActiveClients, affine: Sequence[Values], running: Sequence[Values]
    ) -> None:
        super().__init__()
        self._eps, self._momentum, self._clients = layer.eps, layer.momentum or 0.0, clients
        self._affine, self._running = affine, running
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        """Normalise; samples beyond a client's batch have no part in it, and come out without a meaning."""
        self.passes += 1
        affine = [values() for values in self._affine]
        running = [values() for values in self._running]
        parts = x.view(self._clients.active, -1, *x.shape[1:])
        return (
            self._one_by_one(parts, affine, running)
            if x.device.type == "cpu"
            else self._together(parts, affine, running)
        )

    def _one_by_one(self, x: Tensor, affine: list[Tensor], running: list[Tensor]) -> Tensor:
        outputs = []
        for i, (client_x, samples) in enumerate(zip(x, self._clients.samples, strict=False)):
            mean, variance = (tensor[i] for tensor in running) if running else (None, None)
            weight, bias = (tensor[i] for tensor in affine) if affine else (None, None)
            batch = functional.batch_norm(
                client_x[:samples], mean, variance, weight, bias, True, self._momentum, self._eps
            )
            outputs += [batch, client_x[samples:]]
        return torch.cat(outputs)

    def _together(self, x: Tensor, affine: list[Tensor], running: list[Tensor]) -> Tensor:
        clients, size, channels = x.shape[:3]
        values = x.flatten(3) if x.ndim > 3 else x.unsqueeze(3)  # [clients, samples, channels, places]
        places, weights = values.shape[3], self._clients.weights
        if places * min(self._clients.samples[:clients]) == 1:
            raise ValueError("Expected more than 1 value per channel when training")  # as PyTorch says it
        share = weights.view(clients, size, 1, 1) / places

        def spread(tensor: Tensor) -> Tensor:
            return tensor.view(clients, 1, channels, 1)

        mean = (values * share).sum((1, 3))
        apart = values - spread(mean)
        variance = (apart.square() * share).sum((1, 3))
        out = apart * spread((variance + self._eps).rsqrt())
        if affine:
            out = out * spread(affine[0]) + spread(affine[1])
        if running:
            total = (weights > 0).sum(1, keepdim=True) * places
            with torch.no_grad():
                running[0].lerp_(mean, self._momentum)
                running[1].lerp_(variance * (total / (total - 1)), self._momentum)
        return out.view(x.shape).flatten(0, 1)
