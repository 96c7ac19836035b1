"""Dropout of many clients together: each draws from a generator of its own, as it does alone.

A client's mask is of the samples of its batch, in the order in which PyTorch's dropout draws it. So on a CPU
the masks are those of the client's training by itself, and nobody beside it changes them.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from offbeat.local.fast.active_clients import ActiveClients

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Layers that `ClientDropout` stands in for."""


class ClientDropout(nn.Module):
    """A dropout layer for the samples [active · samples, ...] of the clients at work."""

    def __init__(self, layer: _DropoutNd, clients: ActiveClients) -> None:
        super().__init__()
        self._kept, self._by_channel = 1 - layer.p, type(layer) is not nn.Dropout
        self._clients = clients

    def forward(self, x: Tensor) -> Tensor:
        """The samples times each client's mask; those beyond its batch, which have no weight, stay."""
        clients, kept = self._clients, self._kept
        if kept == 1:
            return x
        mask = torch.ones_like(x)
        parts = mask.view(clients.active, -1, *x.shape[1:])
        for part, samples, generator in zip(parts, clients.samples, clients.generators, strict=False):
            own = part[:samples]
            drawn = torch.empty_like(own)
            if self._by_channel:
                drawn = own.new_empty(*own.shape[:2], *[1] * (own.ndim - 2))
            own.copy_(drawn.bernoulli_(kept, generator=generator).div_(kept or 1.0))
        return x * mask


def without_dropout(module: nn.Module) -> nn.Module:
    """The module, whose dropout layers let everything pass from now on."""
    for layer in module.modules():
        if isinstance(layer, _DropoutNd):
            layer.p = 0.0
    return module


def undrawn_dropout(layer: nn.Module) -> str | None:
    """The kind of dropout in a layer that clients cannot draw for themselves; None where there is none.

    Such are kinds whose output is no masked input, and those inside of a layer with parameters of its own,
    which is taken as a whole.
    """
    if isinstance(layer, _DropoutNd) and layer.p > 0 and not isinstance(layer, DROPOUT):
        return type(layer).__name__
    if next(layer.parameters(recurse=False), None) is None:
        return None
    inside = next((m for m in layer.modules() if isinstance(m, _DropoutNd) and m.p > 0), None)
    return None if inside is None else f"{type(inside).__name__} inside of {type(layer).__name__}"
