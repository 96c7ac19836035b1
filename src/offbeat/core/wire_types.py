"""The types of number in which values travel between a server and its clients."""

from typing import Annotated

import torch
from pydantic import BeforeValidator
from torch import Tensor

from offbeat.core.errors import RunError
from offbeat.core.layout import Layout
from offbeat.core.number_types import NumberType
from offbeat.core.validation import checked_dataclass

DTYPES: dict[NumberType, torch.dtype] = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
}  # fmt: skip
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}
_Given = Annotated[NumberType, BeforeValidator(lambda given: _SHORT.get(str(given), given))]


@checked_dataclass
class Wire:
    """The types in which a run's values travel; everything is summed in float32.

    A rounded model is the base of its tasks at both ends: a change is counted from what the client was sent.

    Attributes:
        down: Type of the values of models to clients.
        up: Type of the values of updates. It is a codec (`offbeat.codec.Rounded`), so an algorithm that has
            another one, and a run with privacy, refuse it.
    """

    down: _Given = "float32"
    up: _Given = "float32"

    def model_bytes(self, layout: Layout) -> int:
        """Bytes of a model that is sent."""
        return layout.bytes_as(DTYPES[self.down].itemsize)


FLOAT32 = Wire()
"""Values travel as they are."""


def rounded(values: Tensor, layout: Layout, to: NumberType) -> Tensor:
    """Values of a model as values of another type, in float32.

    Raises:
        RunError: A finite value is too large for the type.
    """
    if to == "float32":
        return values
    result = values.to(DTYPES[to]).to(torch.float32)
    lost = torch.isfinite(values) & ~torch.isfinite(result)
    if bool(lost.any()):
        at, start = int(lost.nonzero()[0]), 0
        for entry in layout.entries:
            if entry.section == "integer":
                continue
            if at < start + entry.size:
                raise RunError(
                    f"wire.down = {to}: the tensor {entry.name} has the value {float(values[at]):g}, which "
                    "is too large for it: choose bfloat16 or float32 for another run, which may begin with "
                    "the last version of this one (--set initial=DIR)"
                )
            start += entry.size
    return result
