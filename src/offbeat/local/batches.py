"""Batches of a task: reshuffled passes over the client's data, as a data loader gives."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def steps_per_epoch(samples: int, size: int, drop_last: bool = False) -> int:
    """Batches of one pass over a client's samples, each a local step.

    Args:
        samples: Number of the client's samples.
        size: Samples of a batch.
        drop_last: Leave out the incomplete batch at a pass's end. A client with fewer samples than a batch
            has one batch of all of them, so that every client trains.

    Returns:
        ⌈samples / size⌉, or with `drop_last` ⌊samples / size⌋ and at least 1; 0 without samples.
    """
    return max(1, samples // size) if drop_last and samples else -(-samples // size)


def samples_per_epoch(samples: int, size: int, drop_last: bool = False) -> int:
    """Samples that one pass trains on; arguments as of `steps_per_epoch`."""
    return min(samples, steps_per_epoch(samples, size, drop_last) * size)


def batches(
    rng: np.random.Generator, samples: int, size: int, steps: int, drop_last: bool = False
) -> Iterator[Tensor]:
    """Iterate over `steps` batches of positions in 0 … samples − 1.

    Each pass is a new permutation cut into `steps_per_epoch` batches, of which the last may be smaller.
    """
    used, done = samples_per_epoch(samples, size, drop_last), 0
    while done < steps:
        order = torch.from_numpy(rng.permutation(samples))[:used]
        for batch in torch.split(order, size)[: steps - done]:
            yield batch
            done += 1


def batch_table(
    rng: np.random.Generator, samples: int, size: int, steps: int, drop_last: bool = False
) -> npt.NDArray[np.int64]:
    """Make the same batches as rows of a table [steps, size], −1 where a batch has no sample."""
    per_pass = steps_per_epoch(samples, size, drop_last)
    used = samples_per_epoch(samples, size, drop_last)
    table = np.full((-(-steps // per_pass), per_pass * size), -1, dtype=np.int64)
    for order in table:
        order[:used] = rng.permutation(samples)[:used]
    return table.reshape(-1, size)[:steps]
