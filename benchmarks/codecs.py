"""Time and bytes of the codecs.

    python benchmarks/codecs.py [--sizes 1e6 1e7 1e8] [--repeats 1]

A vector of normal values goes through every codec with several budgets, given as bits for each value. The
table has the seconds of `apply`, `encode` and `decode` (the least of the repeats), the payload's bytes and
how much these are over the bits charged. 1e8 values take 0.4 GB, and the whole run 2.5 GB.
"""

from functools import partial

import numpy as np
import torch
from harness import Row, Rows, least, main

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


def label(codec: Codec) -> str:
    levels, coding = getattr(codec, "levels", None), getattr(codec, "coding", None)
    return codec.kind + (f", ν = {levels}" if levels else "") + (f", {coding}" if coding else "")


def measure(codec: Codec, each: float | None, vector: torch.Tensor, repeats: int) -> Row:
    """Seconds and bytes of a codec."""
    size = len(vector)
    bits = None if each is None else int(each * size)
    payload = codec.encode(vector, bits, rng())
    applied, charged = codec.apply(vector, bits, rng())
    assert torch.equal(codec.decode(payload, size), applied)
    del applied
    return {
        "apply": least(repeats, lambda: codec.apply(vector, bits, rng())),
        "encode": least(repeats, lambda: codec.encode(vector, bits, rng())),
        "decode": least(repeats, lambda: codec.decode(payload, size)),
        "bytes": len(payload),
        # A budget that not even one value fits into charges nothing.
        "over the charge": f"{100 * (8 * len(payload) / charged - 1):+.2f} %" if charged else None,
    }


def codecs(sizes: tuple[float, ...] = (1e6, 1e7, 1e8), repeats: int = 1) -> Rows:
    for size in sizes:
        vector = torch.from_numpy(rng().standard_normal(int(size), dtype=np.float32))
        for codec, each in CASES:
            key = {"d": f"{size:.0e}".replace("+0", ""), "codec": label(codec), "bits a value": each}
            yield key, partial(measure, codec, each, vector, repeats)


if __name__ == "__main__":
    main(codecs)
