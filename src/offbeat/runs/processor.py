"""The kind of processor that this process runs on: others round differently, so runs differ in the end."""

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
