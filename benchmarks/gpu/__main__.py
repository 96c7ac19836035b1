"""What a GPU computes in a second for ours and for a bare loop of PyTorch.

    python benchmarks/gpu [--minutes 10] [--device cuda] [--out gpu.md]

Training: a round of FedAvg, 64 clients, batches of 32. The bare loop, and ours with one client at a time,
each also with CUDA graphs; ours with 8 and 64 clients at a time; and ours with worker processes, whose start
counts. A CNN (10 local steps) and ResNet-18 (4) on images of CIFAR-10's shape, a transformer of 10 M
parameters (2) on texts. Versions: FedBuff of ten updates at 1e6 and 1e8 parameters, FedAsync at 1e9.

Each is done once for nothing and then timed three times, or twice if it takes more than two seconds: the
median, with the range. It writes its table itself, and begins nothing when the minutes are over: what is left
has no number then.
`--device cpu` tries the script out, with the smallest of everything.
"""

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import training
import versions
from clock import medians
from nets import NETS

from offbeat.core.errors import UsageError

Row = tuple[str, str, str, str, str]
Job = tuple[str, str, Callable[[], Callable[[], None]], int, str]
"""What is done, whose it is, what makes it, how much work it is, and in which unit."""
REPEATS, CLIENTS, TOGETHER, WORKERS = 3, 64, (1, 8, 64), 4


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description="what a GPU computes in a second")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("gpu.md"))
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("there is no CUDA GPU on this machine: run it where there is one")
    ends = time.monotonic() + 60 * options.minutes - 20  # what is begun must end in time
    rows: list[Row] = []
    for row in _rows(options.device, ends):
        rows.append(row)
        print(" | ".join(row), flush=True)
        options.out.write_text(_table(rows, options.device))
    print(f"The table is {options.out}.")


def _rows(device: str, ends: float) -> Iterator[Row]:
    small = device == "cpu"
    for what, whose, make, work, unit in (*_versions(device, small=small), *_training(device, small=small)):
        yield (what, whose, *_cells(make, device, ends, work, unit))


def _versions(device: str, *, small: bool) -> Iterator[Job]:
    sizes = [("FedBuff of 10", 10**6), ("FedBuff of 10", 10**8), ("FedAsync", 10**9)]
    for name, size in [("FedBuff of 10", 10**4), ("FedAsync", 10**4)] if small else sizes:
        algorithm, updates = versions.ALGORITHMS[name]
        what = f"{name}, {size:.0e} parameters"
        yield what, "by hand", partial(versions.bare, updates, size, device), 1, "versions"
        yield what, "ours", partial(versions.ours, algorithm, updates, size, device), 1, "versions"


def _training(device: str, *, small: bool) -> Iterator[Job]:
    clients = 4 if small else CLIENTS
    for name in ["CNN"] if small else NETS:
        net, steps = NETS[name], 2 if small else NETS[name].steps
        work, learner = clients * steps, training.learner_of(net, clients, device)
        bare = partial(training.bare, net, clients, steps, device)
        yield name, "bare loop", bare, work, "steps"
        if device.startswith("cuda"):
            yield name, "bare loop, CUDA graph", partial(bare, cuda_graph=True), work, "steps"
            recorded = training.learner_of(net, clients, device, cuda_graph=True)
            made = partial(training.ours, recorded, steps)
            yield name, "ours, 1 at a time, CUDA graph", made, work, "steps"
        for together in (1, clients) if small else TOGETHER:
            made = partial(training.ours, learner, steps, together=together)
            yield name, f"ours, {together} at a time", made, work, "steps"
        workers = 2 if small else WORKERS
        made = partial(training.ours, learner, steps, workers=workers)
        yield name, f"ours, {workers} workers and their start", made, work, "steps"


def _cells(
    make: Callable[[], Callable[[], None]], device: str, ends: float, work: int, unit: str
) -> tuple[str, str, str]:
    """Milliseconds, work a second, and memory."""
    if time.monotonic() > ends:
        return "not measured: the time was over", "", ""
    try:
        found = medians(make(), device, REPEATS)
    except torch.OutOfMemoryError:
        return "out of memory", "", ""
    except UsageError as error:
        return f"refused: {error}", "", ""
    finally:
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
    low, high = (1000 * seconds for seconds in found.range)
    memory = f"{found.peak / 2**30:.2f} GiB" if found.peak else ""
    taken = f"{1000 * found.seconds:.1f} ms ({low:.1f} to {high:.1f})"
    return taken, f"{work / found.seconds:,.0f} {unit}/s", memory


def _table(rows: list[Row], device: str) -> str:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor() or "a CPU"
    lines = [
        f"{name}, PyTorch {torch.__version__}, Python {platform.python_version()}.",
        "",
        "| work | whose | time | rate | most memory |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
