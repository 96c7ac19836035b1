"""Long vectors chunk by chunk and on every core, with the bits that one core gives."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from offbeat.cores import usable_cores
from offbeat.vectors.memory_pool import POOL

CHUNK = 2**16  # elements; those of several vectors fit in a cache
LONG = 2**20  # elements; threads do not slow down longer vectors


def in_chunks(vector: Tensor) -> bool:
    """Whether a vector is taken in chunks: a long one on a CPU. On a GPU each costs a launch more."""
    return vector.numel() > CHUNK and vector.device.type == "cpu"


def is_short(vector: Tensor) -> bool:
    """Whether one core takes a vector in any case."""
    return vector.numel() < LONG


def map_chunks(body: Callable[..., Tensor], *vectors: Tensor, out: Tensor | None = None) -> Tensor:
    """The vector whose chunks `body(out, *chunks)` makes.

    Args:
        body: writes a chunk to `out`, or to a new tensor where `out` is None, and returns it.
        vectors: one or more, all of one size.
        out: Where they go; None means a new tensor.

    Returns:
        `out`, or the new tensor.
    """
    if not in_chunks(vectors[0]):
        return body(out, *vectors)
    whole = POOL.like(vectors[0]) if out is None else out
    for_each_chunk(body, whole, *vectors)
    return whole


def for_each_chunk(body: Callable[..., object], *vectors: Tensor) -> None:
    """Call `body` with the vectors' first chunks, their second chunks, and so on, each once.

    Several operations on them are then one pass over memory. Long vectors are shared among the cores where
    PyTorch has one thread, as in a simulation and on a server. A chunk is the same on every core, so its bits
    are too; `body` must read nothing but its chunks, and write to nothing else.
    """
    size = vectors[0].numel()
    if not in_chunks(vectors[0]):
        body(*vectors)
        return
    starts = range(0, size, CHUNK)
    threads = min(usable_cores(), len(starts)) if size >= LONG and torch.get_num_threads() == 1 else 1

    def share(number: int) -> None:
        for i in starts[number * len(starts) // threads : (number + 1) * len(starts) // threads]:
            body(*(vector[i : i + CHUNK] for vector in vectors))

    if threads == 1:
        share(0)
        return
    with ThreadPoolExecutor(threads) as pool:
        # Listing the results raises the error of a thread.
        list(pool.map(share, range(threads)))
