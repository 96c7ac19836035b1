"""Error feedback: what a codec leaves out of an update is added to the client's next one.

A client has a residual e, at first 0. It sends C(Δ + e), and keeps e := Δ + e − C(Δ + e) once the update is
accepted; an update that is refused or lost leaves e as it was (Stich, Cordonnier, Jaggi, Sparsified SGD with
Memory, 2018, Algorithm 1; Karimireddy et al., Error Feedback Fixes SignSGD, 2019, Algorithm 2). The residual
is a part of the client's state, which drivers keep (`core.error_feedback`).

The residual stays bounded where E‖C(x) − x‖² < ‖x‖². Few levels round many values to more than they are, with
E‖C(x) − x‖² ≤ ω ‖x‖² and ω > 1, so quantised values are divided by 1 + ω at both ends, which leaves at most
ω/(1 + ω) (Beznosikov et al., On Biased Compression for Distributed Learning, 2020, Section 2.2).
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from offbeat.codec.identity import Identity
from offbeat.codec.int8 import Int8
from offbeat.codec.qsgd import Qsgd
from offbeat.codec.quantisation import variance_bound
from offbeat.codec.rounded import Rounded
from offbeat.codec.sparse import Sparse
from offbeat.codec.sparse_quantised import SparseQuantised
from offbeat.codec.top_k import TopK
from offbeat.core.errors import UsageError
from offbeat.core.validation import checked_dataclass

PlainCodec = Identity | Rounded | Int8 | SparseQuantised | TopK | Qsgd


@checked_dataclass
class ErrorFeedback:
    """Error feedback around a codec; bits and payload are those of the codec.

    Attributes:
        of: The codec. One that is unbiased is refused: the sum of its errors does not stay bounded.
    """

    of: Annotated[PlainCodec, Field(discriminator="kind")]
    kind: Literal["error_feedback"] = "error_feedback"

    def __post_init__(self) -> None:
        """Refuse a codec whose errors average out by themselves."""
        if isinstance(self.of, Qsgd) or (isinstance(self.of, SparseQuantised) and self.of.unbiased):
            raise UsageError(
                f"error_feedback of {self.of.kind}, which is unbiased, is not allowed: its errors average "
                "out by themselves; give top_k, int8, rounded or sparse_quantised"
            )

    def bits(self, size: int) -> int | None:
        """As the codec charges."""
        return self.of.bits(size)

    def apply(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> tuple[Tensor, int]:
        """As the codec does, quantised values divided by 1 + ω; the residual is in the vector already."""
        sent, charged = self.of.apply(vector, bits, rng)
        if isinstance(self.of, Sparse):
            sent = self._damped(self.of, sent, self.of.kept(len(vector), bits))
        return sent, charged

    def encode(self, vector: Tensor, bits: int | None, rng: np.random.Generator) -> bytes:
        """As the codec does; the residual is in the vector already."""
        return self.of.encode(vector, bits, rng)

    def decode(self, payload: bytes, size: int) -> Tensor:
        """As the codec does, quantised values divided by 1 + ω."""
        sent = self.of.decode(payload, size)
        return self._damped(self.of, sent, self.of.count(payload)) if isinstance(self.of, Sparse) else sent

    @staticmethod
    def _damped(codec: Sparse, sent: Tensor, r: int) -> Tensor:
        """What is sent of r values, divided by 1 + ω; as it is where values are exact."""
        return sent if codec.levels is None else sent / (1 + variance_bound(r, codec.levels))
