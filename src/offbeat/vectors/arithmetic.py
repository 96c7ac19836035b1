"""Arithmetic on long vectors: sums, differences and a running window, each in one pass over memory.

The bits are those of one operation after the other on whole vectors.
"""

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from offbeat.vectors.chunked import CHUNK, for_each_chunk, in_chunks, is_short, map_chunks
from offbeat.vectors.memory_pool import POOL

# Adding −0.0 changes no number, neither 0.0 nor −0.0.
_ZERO = torch.tensor(-0.0)


def weighted_sum(vectors: Sequence[Tensor], weights: Sequence[float], out: Tensor | None = None) -> Tensor:
    """Σ c_i v_i, summed in order.

    Args:
        vectors: v_i, all of one size.
        weights: c_i, as many.
        out: where the sum goes; none of the vectors but the first.

    Returns:
        `out`, or a fresh tensor.
    """
    if in_chunks(vectors[0]):
        return map_chunks(lambda part, *parts: _sum(parts, weights, part), *vectors, out=out)
    return _sum(vectors, weights, out)


def _sum(vectors: Sequence[Tensor], weights: Sequence[float], out: Tensor | None = None) -> Tensor:
    total = torch.add(_ZERO, vectors[0], alpha=weights[0], out=out)
    for i in range(1, len(vectors)):
        total.add_(vectors[i], alpha=weights[i])
    return total


def weighted_steps(
    deltas: Sequence[Tensor],
    weights: Sequence[float],
    starts: Sequence[Tensor],
    origin: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """Σ c_i (start_i + Δ_i − origin): Σ c_i Δ_i first, then Σ c_i (start_i − origin).

    A start that is `origin` itself adds nothing and costs nothing.

    Args:
        deltas: Δ_i, all of one size.
        weights: c_i, as many.
        starts: start_i, as many.
        origin: What is subtracted of each.
        out: where the sum goes; of the vectors it may be the first Δ only.

    Returns:
        `out`, or a fresh tensor.
    """
    moved = [(start, c) for start, c in zip(starts, weights, strict=True) if start is not origin]
    if not in_chunks(origin):
        return _steps(deltas, weights, moved, origin, out)
    if not moved and len(deltas) == 1 and is_short(origin):
        # One operation is one pass anyway.
        return scaled(deltas[0], weights[0], POOL.like(origin) if out is None else out)
    n, late = len(deltas), [c for _, c in moved]

    def add(out: Tensor | None, origin: Tensor, *parts: Tensor) -> Tensor:
        return _steps(parts[:n], weights, zip(parts[n:], late, strict=True), origin, out)

    return map_chunks(add, origin, *deltas, *[start for start, _ in moved], out=out)


def _steps(
    deltas: Sequence[Tensor],
    weights: Sequence[float],
    moved: Iterable[tuple[Tensor, float]],
    origin: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    step = _sum(deltas, weights, out)
    for start, weight in moved:
        step.add_(start - origin, alpha=weight)
    return step


def displacement(start: Tensor, delta: Tensor, origin: Tensor) -> Tensor:
    """(start + Δ) − origin in a fresh tensor."""
    return map_chunks(lambda out, s, d, o: torch.add(s, d, out=out).sub_(o), start, delta, origin)


def scaled(vector: Tensor, weight: float, out: Tensor | None = None) -> Tensor:
    """c v in `out`, or in a fresh tensor: the bits of `torch.mul` in half of its time for a Python number."""
    return torch.add(_ZERO, vector, alpha=weight, out=out)


def head(vector: Tensor, count: int) -> Tensor:
    """The first values, without the time that a view takes where these are all."""
    return vector if vector.numel() == count else vector[:count]


def chunks(*vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The vectors in chunks that fit in a cache, for sums that are carried from chunk to chunk."""
    if not in_chunks(vectors[0]):
        yield vectors
        return
    for i in range(0, vectors[0].numel(), CHUNK):
        yield tuple(vector[i : i + CHUNK] for vector in vectors)


class RunningWindow:
    """The last K vectors x_k, their weights c_k and the running sum Σ c_k x_k, kept in named tensors.

    An arrival costs the same for every K: the sum gains the newest vector and loses the oldest. The x_k are
        separate tensors, because taking a row of one tensor takes longer than replacing a short row.

    Args:
        memory: The named tensors. Missing ones are made as zeros.
        size: K.
        like: A vector with the size and dtype of the x_k.
        columns: Names of further tensors with a number for each x_k.
    """

    # After this number of arrivals the sum is formed anew, which removes its rounding errors.
    RESUM: ClassVar[int] = 1000

    def __init__(
        self, memory: MutableMapping[str, Tensor], size: int, like: Tensor, columns: str = ""
    ) -> None:
        if not memory:
            memory.update({name: torch.zeros_like(like) for name in (*(f"x{k}" for k in range(size)), "sum")})
            memory.update({name: torch.zeros(size, dtype=torch.float64) for name in f"c{columns}"})
            memory["arrivals"] = torch.zeros((), dtype=torch.int64)
        else:
            # Only copies are written to: the given tensors stay as they are.
            changed = ("sum", "arrivals", *f"c{columns}")
            memory.update({name: POOL.like(memory[name]).copy_(memory[name]) for name in changed})
        self._memory, self._size, self._columns = memory, size, columns
        self.sum, self.weights, self.arrivals = memory["sum"], memory["c"], 0

    def push(self, delta: Tensor, start: Tensor | None, weight: float, *numbers: float) -> None:
        """Put Δ, or start + Δ, with its weight and its other numbers in the place of the oldest vector.

        Without a start Δ itself is kept: never write to it.
        """
        # Single numbers of a NumPy array are read several times faster than those of a tensor.
        memory, c = self._memory, self.weights.numpy()
        self.arrivals = int(memory["arrivals"].item()) + 1
        memory["arrivals"].fill_(self.arrivals)
        k = self.arrivals % self._size
        oldest, total, old = float(c[k]), self.sum, memory[f"x{k}"]
        term = memory[f"x{k}"] = delta if start is None else POOL.like(old)
        c[k] = weight
        for name, number in zip(self._columns, numbers, strict=False):
            memory[name].numpy()[k] = number

        def slide(s: Tensor, old: Tensor, x: Tensor, delta: Tensor, *start: Tensor) -> None:
            s.sub_(old, alpha=oldest)
            s.add_(torch.add(start[0], delta, out=x) if start else delta, alpha=weight)

        for_each_chunk(slide, total, old, term, delta, *([] if start is None else [start]))
        if self.arrivals % self.RESUM == 0:
            total.copy_(weighted_sum([memory[f"x{n}"] for n in range(self._size)], c.tolist()))

    @property
    def full(self) -> bool:
        """Had K vectors come before the newest one?"""
        return self.arrivals > self._size
