"""Pool of reusable CPU tensors; avoids page faults on fresh memory.

Fresh memory comes page by page as it is first written, which for a long vector takes longer than a copy. A
vector given out here is a view; when it and all that shares its memory are gone, that memory is spare.
"""

import weakref
from collections import deque
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

SPARE, SPARE_BYTES = 32, 512 << 20
"""How many freed vectors are kept at most, and how many bytes of them."""
LEAST, MOST = 256 << 10, 256 << 20
"""Bytes of vectors worth keeping; longer ones are given back to the system."""


class _Lent(weakref.ref[npt.NDArray[Any]]):
    """A reference to an array that is given out, with the vector whose memory the array uses."""

    __slots__ = ("base",)
    base: "_Base"


class _Base(NamedTuple):
    """A vector, with what is asked of each spare one: a tensor takes longer to tell it."""

    size: int
    dtype: torch.dtype
    vector: Tensor

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


class VectorPool:
    """Makes vectors with undefined values. Any thread may call it.

    It has no lock, as vectors are freed at any moment, also within a call: the own methods of a deque and a
    dict are enough.
    """

    def __init__(self) -> None:
        self._spare: deque[_Base] = deque(maxlen=SPARE)
        # The references to arrays that are given out, by their ids. A reference must live to be called.
        self._lent: dict[int, _Lent] = {}

    def vector(self, size: int, dtype: torch.dtype) -> Tensor:
        """A vector of `size` values on the CPU that nothing else uses."""
        if not LEAST <= size * dtype.itemsize <= MOST:
            return torch.empty(size, dtype=dtype)
        base = self._taken(size, dtype)
        # Each call makes a new array, which is freed with the last tensor that uses it.
        view = base.vector.numpy()
        lent = _Lent(view, self._freed)
        lent.base = base
        self._lent[id(lent)] = lent
        return torch.from_numpy(view)

    def like(self, vector: Tensor) -> Tensor:
        """A vector of another's size, dtype and device."""
        if vector.nbytes < LEAST or vector.device.type != "cpu" or vector.dim() != 1:
            return torch.empty_like(vector)
        return self.vector(vector.numel(), vector.dtype)

    def _taken(self, size: int, dtype: torch.dtype) -> _Base:
        """A spare vector of this size, or a new one; the others go to the end."""
        for _ in range(len(self._spare)):
            try:
                spare = self._spare.popleft()
            except IndexError:
                # Another thread was faster.
                break
            if spare.size == size and spare.dtype is dtype:
                return spare
            self._spare.append(spare)
        return _Base(size, dtype, torch.empty(size, dtype=dtype))

    def _freed(self, lent: weakref.ref[npt.NDArray[Any]]) -> None:
        """Keep a vector's memory, and free the oldest spare vectors beyond the limit."""
        base = self._lent.pop(id(lent)).base
        spare_bytes = base.nbytes + sum(spare.nbytes for spare in tuple(self._spare))
        while spare_bytes > SPARE_BYTES:
            try:
                spare_bytes -= self._spare.popleft().nbytes
            except IndexError:
                break
        self._spare.append(base)


POOL = VectorPool()
"""The pool of this process: memory that one part of it has freed, another uses."""
