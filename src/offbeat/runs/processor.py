"""The kinds of processor and GPU that a run is made on: others round differently, and later runs differ."""

import platform
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
MOST_LETTERS = 200


@cache
def processor_name() -> str:
    """Name of this machine's kind of processor: the maker's, or else the architecture."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(filter(None, named), platform.processor() or platform.machine() or "unknown")
    return name[:MOST_LETTERS]


def gpu_name(device: str) -> str:
    """Name of a device's kind of GPU, as its maker gives it, or else the device's; empty for a CPU."""
    import torch

    kind = torch.device(device).type
    if kind == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    return "" if kind == "cpu" else kind
