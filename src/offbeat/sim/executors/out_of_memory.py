"""Whether an error says that the memory of a device has run out, and how it says so."""

import torch

# CUDA's libraries raise plain errors where the memory of a GPU is too short for their own needs.
_TOLD_BY_CUDA = "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"


def out_of_memory(error: BaseException) -> str | None:
    """The first sentence about memory that ran out, from an error or its causes; None for another error."""
    cause: BaseException | None = error
    while cause is not None:
        told = str(cause)
        if isinstance(cause, torch.OutOfMemoryError) or any(words in told for words in _TOLD_BY_CUDA):
            return told.partition("\n")[0].partition(". ")[0].rstrip(".")
        cause = cause.__cause__
    return None
