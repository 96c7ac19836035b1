"""Errors of memory: PyTorch raises plain errors where it cannot allocate."""

import pytest
import torch

from offbeat.core.errors import is_out_of_memory


@pytest.mark.parametrize("shape", [(10**9, 10**9), (10**10, 10**9)])
def test_what_pytorch_cannot_allocate_is_known(shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(shape)
    assert is_out_of_memory(caught.value)


def test_other_errors_are_others() -> None:
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))
