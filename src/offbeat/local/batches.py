"""Which samples a task's steps see: reshuffled passes over the client's data, as a data loader gives."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


def batches(generator: np.random.Generator, samples: int, size: int, steps: int) -> Iterator[Tensor]:
    """`steps` batches of positions in 0 … samples − 1.

    Each pass is a new permutation cut into ⌈samples / size⌉ batches, of which the last may be smaller.
    """
    done = 0
    while done < steps:
        order = torch.from_numpy(generator.permutation(samples))
        for batch in torch.split(order, size)[: steps - done]:
            yield batch
            done += 1
