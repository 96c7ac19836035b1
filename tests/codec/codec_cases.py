"""Codecs, generators and vectors for the tests of this folder."""

import numpy as np
import torch
from hypothesis import strategies as st

from offbeat.codec import Codec, ErrorFeedback, Identity, Int8, Qsgd, Rounded, SparseQuantised, TopK

CODECS: list[Codec] = [
    Identity(),
    Rounded(),
    Int8(),
    ErrorFeedback(of=TopK(fraction=0.2)),
    ErrorFeedback(of=SparseQuantised(fraction=0.5)),
    SparseQuantised(),
    SparseQuantised(levels=1),
    SparseQuantised(levels=300, fraction=0.3, unbiased=True),
    TopK(),
    TopK(fraction=0.2),
    TopK(levels=4),
    TopK(levels=127),
    Qsgd(),
    Qsgd(levels=1, coding="elias"),
    Qsgd(levels=6, coding="elias"),
    Qsgd(levels=2**15 - 1),
    Qsgd(levels=2**15 - 1, coding="elias"),
]


def name(codec: Codec) -> str:
    return repr(codec)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit, the sign of zero included."""
    return a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()


codecs = st.sampled_from(CODECS)
seeds = st.integers(0, 2**32)
values = st.one_of(
    st.just(0.0), st.just(-0.0), st.floats(-(2.0**100), 2.0**100, width=32), st.floats(-1.0, 1.0, width=32)
)
vectors = st.lists(values, max_size=80).map(lambda v: torch.tensor(v, dtype=torch.float32))
