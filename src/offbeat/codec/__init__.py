"""Codecs: compression of a model's update, simulated or as bytes.

`CodecSpec` is a codec as options, such as those of a recipe: {kind: sparse_quantised, levels: 4}.
"""

from typing import Annotated

from pydantic import Field

from offbeat.codec.budget import bits_needed, largest_r
from offbeat.codec.error_feedback import ErrorFeedback, PlainCodec
from offbeat.codec.identity import Identity
from offbeat.codec.int8 import Int8
from offbeat.codec.qsgd import Qsgd
from offbeat.codec.rounded import Rounded
from offbeat.codec.sparse_quantised import SparseQuantised
from offbeat.codec.top_k import TopK
from offbeat.core.codec import Codec, PayloadError
from offbeat.lazy import listing

AnyCodec = PlainCodec | ErrorFeedback
CodecSpec = Annotated[
    AnyCodec,
    Field(discriminator="kind", description="how updates are compressed, such as {kind: sparse_quantised}"),
]

__all__ = [
    "AnyCodec",
    "Codec",
    "CodecSpec",
    "ErrorFeedback",
    "Identity",
    "Int8",
    "PayloadError",
    "Qsgd",
    "Rounded",
    "SparseQuantised",
    "TopK",
    "bits_needed",
    "largest_r",
]
__dir__ = listing(__name__)
