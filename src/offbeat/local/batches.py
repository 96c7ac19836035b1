"""Batches of a task: reshuffled passes over the client's data, as a data loader gives."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def batches(rng: np.random.Generator, samples: int, size: int, steps: int) -> Iterator[Tensor]:
    """Iterate over `steps` batches of positions in 0 … samples − 1.

    Each pass is a new permutation cut into ⌈samples / size⌉ batches, of which the last may be smaller.
    """
    done = 0
    while done < steps:
        order = torch.from_numpy(rng.permutation(samples))
        for batch in torch.split(order, size)[: steps - done]:
            yield batch
            done += 1


def batch_table(rng: np.random.Generator, samples: int, size: int, steps: int) -> npt.NDArray[np.int64]:
    """Make the same batches as rows of a table [steps, size], −1 where a batch has no sample."""
    per_pass = -(-samples // size)
    table = np.full((-(-steps // per_pass), per_pass * size), -1, dtype=np.int64)
    for order in table:
        order[:samples] = rng.permutation(samples)
    return table.reshape(-1, size)[:steps]
