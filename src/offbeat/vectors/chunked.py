"""Arithmetic on long vectors, piece by piece and on every core, with the bits that one core gives."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from offbeat.vectors.pool import POOL

CHUNK = 2**16  # elements: what several operations need of them fits in a cache
LONG = 2**20  # elements, from which on threads do not cost; what they gain is a matter of the memory


def map_chunks(body: Callable[..., Tensor], *vectors: Tensor) -> Tensor:
    """The vector whose pieces `body(out, *pieces)` gives: in `out`, or in a new tensor if that is None."""
    if vectors[0].numel() <= CHUNK:
        return body(None, *vectors)
    out = POOL.like(vectors[0])
    for_each_chunk(body, out, *vectors)
    return out


def for_each_chunk(body: Callable[..., object], *vectors: Tensor) -> None:
    """Call `body` with the vectors' first pieces, their second pieces, and so on, each once.

    So several operations on them are one pass over memory. Long vectors are shared among the cores where
    PyTorch has one thread, as in a simulation and on a server. A piece is the same whoever takes it, so its
    bits are too; `body` must go by nothing but its pieces, and write to nothing else.
    """
    size = vectors[0].numel()
    if size <= CHUNK:
        body(*vectors)
        return
    starts = range(0, size, CHUNK)
    threads = min(_cores(), len(starts)) if size >= LONG and torch.get_num_threads() == 1 else 1

    def stretch(number: int) -> None:
        for i in starts[number * len(starts) // threads : (number + 1) * len(starts) // threads]:
            body(*(vector[i : i + CHUNK] for vector in vectors))

    if threads == 1:
        stretch(0)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(stretch, range(threads)):
            pass


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
