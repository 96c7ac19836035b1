"""Arithmetic on long vectors: sums, differences and a running window, each in one pass over memory.

The bits are those of one operation after the other on whole vectors.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from offbeat.vectors.chunked import CHUNK, for_each_chunk, map_chunks

_ZERO = torch.tensor(-0.0)  # what any number may be added to without a change, 0.0 and −0.0 too


def weighted_sum(vectors: Sequence[Tensor], weights: Sequence[float], out: Tensor | None = None) -> Tensor:
    """Σ c_i v_i, summed in order.

    Args:
        vectors: v_i, all of one size.
        weights: c_i, as many.
        out: where the sum goes; none of the vectors.

    Returns:
        `out`, or a fresh tensor.
    """
    if out is None and vectors[0].numel() > CHUNK:
        return map_chunks(lambda part, *parts: weighted_sum(parts, weights, part), *vectors)
    total = scaled(vectors[0], weights[0], out)
    for i in range(1, len(vectors)):
        total.add_(vectors[i], alpha=weights[i])
    return total


def weighted_steps(
    deltas: Sequence[Tensor], weights: Sequence[float], starts: Sequence[Tensor], origin: Tensor
) -> Tensor:
    """Σ c_i (start_i + Δ_i − origin) in a fresh tensor: Σ c_i Δ_i first, then Σ c_i (start_i − origin).

    A start that is `origin` itself adds nothing and costs nothing.
    """
    moved = [(i, start) for i, start in enumerate(starts) if start is not origin]

    def add(out: Tensor | None, origin: Tensor, *parts: Tensor) -> Tensor:
        step = weighted_sum(parts[: len(deltas)], weights, out)
        for (i, _), start in zip(moved, parts[len(deltas) :], strict=True):
            step.add_(start - origin, alpha=weights[i])
        return step

    return map_chunks(add, origin, *deltas, *[start for _, start in moved])


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
    """The vectors in chunks that fit in a cache, for what is carried from chunk to chunk."""
    for i in range(0, vectors[0].numel(), CHUNK):
        yield tuple(vector[i : i + CHUNK] for vector in vectors)


class RunningWindow:
    """The last K vectors x_k, their weights c_k and the running sum Σ c_k x_k, kept in named tensors.

    An arrival costs the same whatever K: the sum gains the newest vector and loses the oldest. The x_k are
    tensors of their own: taking a row of one tensor takes longer than replacing a short row.

    Args:
        memory: the named tensors; where there are none, zeros are made.
        size: K.
        like: a vector of the size and dtype of the x_k.
        columns: names of further tensors with a number for each x_k.
    """

    RESUM: ClassVar[int] = 1000  # arrivals after which the sum is made anew, which ends its rounding errors

    def __init__(
        self, memory: MutableMapping[str, Tensor], size: int, like: Tensor, columns: str = ""
    ) -> None:
        if not memory:
            memory.update({name: torch.zeros_like(like) for name in (*(f"x{k}" for k in range(size)), "sum")})
            memory.update({name: torch.zeros(size, dtype=torch.float64) for name in f"c{columns}"})
            memory["arrivals"] = torch.zeros((), dtype=torch.int64)
        self._memory, self._size, self._columns = memory, size, f"c{columns}"
        self.sum, self.weights = memory["sum"], memory["c"]

    def push(self, delta: Tensor, start: Tensor | None, weight: float, *numbers: float) -> None:
        """Put Δ, or start + Δ, with its weight and its other numbers in the place of the oldest vector.

        Without a start Δ itself is kept: never write to it.
        """
        memory, arrivals = self._memory, int(self._memory["arrivals"].add_(1))
        k = arrivals % self._size
        oldest, own = float(self.weights[k]), f"x{k}"
        for name, number in zip(self._columns, (weight, *numbers), strict=True):
            memory[name].numpy()[k] = number  # several times faster than the tensor's own
        if start is None:
            for_each_chunk(
                lambda s, x, d: s.sub_(x, alpha=oldest).add_(d, alpha=weight), self.sum, memory[own], delta
            )
            memory[own] = delta
        else:
            for_each_chunk(
                lambda s, x, o, d: s.sub_(x, alpha=oldest).add_(torch.add(o, d, out=x), alpha=weight),
                self.sum, memory[own], start, delta,
            )  # fmt: skip
        if arrivals % self.RESUM == 0:
            vectors = [memory[f"x{n}"] for n in range(self._size)]
            self.sum.copy_(weighted_sum(vectors, self.weights.tolist()))

    @property
    def full(self) -> bool:
        """Had K vectors come before the newest one?"""
        return int(self._memory["arrivals"]) > self._size
