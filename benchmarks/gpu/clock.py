"""Seconds of work on a device, and the most memory that it took there."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Cost:
    """What work cost: the median of its seconds, their range, and the most bytes on the device."""

    seconds: float
    range: tuple[float, float]
    peak: int


LONG = 2.0  # seconds of a repetition


def medians(work: Callable[[], object], device: str, repeats: int) -> Cost:
    """Do the work once for nothing, and then time some repetitions, of long work two at most.

    Raises `torch.OutOfMemoryError`.
    """
    on_gpu = device.startswith("cuda")
    work()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
        if len(found) > 1 and found[-1] > LONG:
            break
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    return Cost(statistics.median(found), (min(found), max(found)), peak)
