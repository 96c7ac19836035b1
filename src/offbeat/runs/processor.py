"""The kinds of processor and GPU that a run is made on: others round differently, and later runs differ."""

import platform
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
MOST_LETTERS = 200


@cache
def processor_name() -> str:
    """Name of this machine's kind of processor: the maker's with family and model, or else the architecture.

    Makers and hosts give processors of several generations one name, and these round differently.
    """
    try:
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    # Of several processors, the first one counts.
    known = {key.strip(): value.strip() for key, _, value in reversed([x.partition(":") for x in lines])}
    name = known.get("model name") or platform.processor() or platform.machine() or "unknown"
    if known.get("cpu family") and known.get("model"):
        name += f" family {known['cpu family']} model {known['model']}"
    return name[:MOST_LETTERS]


def gpu_name(device: str) -> str:
    """Name of a device's kind of GPU, as its maker gives it, or else the device's; empty for a CPU."""
    import torch

    kind = torch.device(device).type
    if kind == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    return "" if kind == "cpu" else kind
