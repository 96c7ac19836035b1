"""What a layer of many clients knows of those at work."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class ActiveClients(Protocol):
    """The clients at work.

    Attributes:
        active: How many there are.
        samples: How many samples each one's batch has.
        weights: Weights of the samples, which sum to one for each client, [active, samples].
        generators: What each one's layers draw from.
    """

    active: int
    samples: Sequence[int]
    weights: Tensor
    generators: Sequence[torch.Generator]
