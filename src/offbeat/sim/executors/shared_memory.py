"""Models in memory that processes share: a block holds one model's flat vectors."""

import os
from multiprocessing.shared_memory import SharedMemory

import torch
from torch import Tensor

from offbeat.core.errors import RunError
from offbeat.core.layout import Layout


class Block:
    """A shared block of the size of a layout; `values`, `integers` and `shared` are tensors in it."""

    def __init__(self, layout: Layout, name: str | None = None) -> None:
        values = _aligned(8 * layout.integers)
        shared = values + _aligned(4 * layout.values)
        size = shared + 4 * layout.shared
        self._memory = SharedMemory(name, create=name is None, size=max(1, size))
        self._owner = name is None
        if self._owner:
            _reserve(self._memory)
        self.name = self._memory.name
        self.integers = _tensor(self._memory, torch.int64, layout.integers, 0)
        self.values = _tensor(self._memory, torch.float32, layout.values, values)
        self.shared = _tensor(self._memory, torch.float32, layout.shared, shared)

    def write(self, values: Tensor, integers: Tensor, shared: Tensor) -> None:
        """Copy a model's vectors in."""
        self.values.copy_(values)
        self.integers.copy_(integers)
        self.shared.copy_(shared)

    def close(self) -> None:
        """Let the block go; its maker also deletes it."""
        del self.values, self.integers, self.shared
        self._memory.close()
        if self._owner:
            self._memory.unlink()


def _reserve(memory: SharedMemory) -> None:
    """Have the system find the block's pages now: where there are none, to write to it ends the process.

    Raises `RunError` where there are none; in a container that is soon.
    """
    try:
        file = os.open(f"/dev/shm/{memory.name}", os.O_RDWR)
    except OSError:
        # Another system keeps the block elsewhere.
        return
    try:
        os.posix_fallocate(file, 0, memory.size)
    except OSError as error:
        memory.close()
        memory.unlink()
        raise RunError(
            f"no shared memory for a model of {memory.size} bytes ({error.strerror}): give /dev/shm more "
            "(in a container: docker run --shm-size), or train with workers = 0"
        ) from None
    finally:
        os.close(file)


def _aligned(size: int) -> int:
    """The next multiple of 64 bytes, where PyTorch starts its tensors too: it can change the last bits."""
    return -(-size // 64) * 64


def _tensor(memory: SharedMemory, dtype: torch.dtype, count: int, offset: int) -> Tensor:
    if count == 0:
        return torch.zeros(0, dtype=dtype)
    return torch.frombuffer(memory.buf, dtype=dtype, count=count, offset=offset)
