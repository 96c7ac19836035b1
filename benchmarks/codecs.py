"""Time and bytes of the codecs.

    python benchmarks/codecs.py [--sizes 1e6 1e7 1e8] [--repeats 1]

A vector of normal values goes through every codec with several budgets, given as bits for each value. The
table has the seconds of `apply`, `encode` and `decode` (the least of the repeats), the payload's bytes and
how much these are over the bits charged. 1e8 values take 0.4 GB, and the whole run 2.5 GB.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from offbeat.codec import Codec, Identity, Qsgd, SparseQuantised, TopK

CASES: list[tuple[Codec, float | None]] = [
    (Identity(), None),
    (SparseQuantised(), None),
    (SparseQuantised(), 0.01),
    (SparseQuantised(), 0.1),
    (SparseQuantised(), 1.0),
    (SparseQuantised(), 2.5),
    (TopK(), 0.1),
    (TopK(), 2.5),
    (TopK(levels=4), 0.1),
    (Qsgd(), None),
    (Qsgd(coding="elias"), None),
]


def rng() -> np.random.Generator:
    return np.random.Generator(np.random.Philox(1))


def timed(repeats: int, call: Callable[[], object]) -> float:
    """The least seconds of so many calls."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def label(codec: Codec) -> str:
    levels, coding = getattr(codec, "levels", None), getattr(codec, "coding", None)
    return codec.kind + (f", ν = {levels}" if levels else "") + (f", {coding}" if coding else "")


def row(codec: Codec, each: float | None, vector: torch.Tensor, repeats: int) -> str:
    """One line of the table."""
    size = len(vector)
    bits = None if each is None else int(each * size)
    payload = codec.encode(vector, bits, rng())
    applied, charged = codec.apply(vector, bits, rng())
    assert torch.equal(codec.decode(payload, size), applied)
    del applied
    seconds = [
        timed(repeats, lambda: codec.apply(vector, bits, rng())),
        timed(repeats, lambda: codec.encode(vector, bits, rng())),
        timed(repeats, lambda: codec.decode(payload, size)),
    ]
    budget = "-" if each is None else f"{each:g}"
    # A budget that not even one value fits into charges nothing.
    over = f"{100 * (8 * len(payload) / charged - 1):+.2f} %" if charged else "–"
    cells = [f"{size:.0e}".replace("+0", ""), label(codec), budget, *(f"{s:.3f}" for s in seconds)]
    return "| " + " | ".join([*cells, f"{len(payload):,}", over]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=float, default=[1e6, 1e7, 1e8])
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    print("| d | codec | bits a value | apply | encode | decode | bytes | over the charge |")
    print("|---|---|---|---|---|---|---|---|")
    for size in options.sizes:
        vector = torch.from_numpy(rng().standard_normal(int(size), dtype=np.float32))
        for codec, each in CASES:
            print(row(codec, each, vector, options.repeats), flush=True)


if __name__ == "__main__":
    main()
