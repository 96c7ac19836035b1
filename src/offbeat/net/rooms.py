"""Room for the tensors that are received; what was freed is used again, which spares its page faults.

Fresh memory comes page by page as it is first written, which for a large tensor takes longer than the copy.
A tensor given out here is a view; when it and all that shares its memory are gone, that memory is spare.
"""

import weakref
from collections import deque

import torch
from torch import Tensor

SPARE = 2
"""How many freed tensors are kept."""
LEAST, MOST = 256 << 10, 256 << 20
"""Bytes of tensors worth keeping; larger ones are given back to the system."""


class Rooms:
    """Makes vectors with undefined values."""

    def __init__(self) -> None:
        self._spare: deque[Tensor] = deque(maxlen=SPARE)

    def vector(self, size: int, dtype: torch.dtype) -> Tensor:
        """A vector of `size` values, which nobody else has."""
        octets = size * dtype.itemsize
        if not LEAST <= octets <= MOST:
            return torch.empty(size, dtype=dtype)
        base = self._taken(size, dtype)
        view = base.numpy()  # a new array on every call: it is gone when no tensor uses it any more
        weakref.finalize(view, self._spare.append, base).atexit = False
        return torch.from_numpy(view)

    def _taken(self, size: int, dtype: torch.dtype) -> Tensor:
        """A spare vector of this size, or a new one."""
        for _ in range(len(self._spare)):
            try:
                spare = self._spare.popleft()
            except IndexError:  # a thread was faster
                break
            if len(spare) == size and spare.dtype == dtype:
                return spare
        return torch.empty(size, dtype=dtype)
