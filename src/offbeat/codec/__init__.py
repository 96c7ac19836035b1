"""Codecs: a model's update in few bits, simulated or really as bytes."""

from offbeat.codec.budget import bits_needed, largest_r
from offbeat.codec.identity import Identity
from offbeat.codec.qsgd import Qsgd
from offbeat.codec.sparse_quantised import SparseQuantised
from offbeat.codec.spec import AnyCodec, CodecSpec
from offbeat.codec.top_k import TopK
from offbeat.core.codec import Codec, PayloadError

__all__ = [
    "AnyCodec",
    "Codec",
    "CodecSpec",
    "Identity",
    "PayloadError",
    "Qsgd",
    "SparseQuantised",
    "TopK",
    "bits_needed",
    "largest_r",
]
