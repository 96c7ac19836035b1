"""Types of options: the ranges and meanings that factories and parts share, declared once."""

from typing import Annotated

from pydantic import Field

from offbeat.core.types import NUMBER
from offbeat.core.types import Count as Count
from offbeat.core.types import NonNegative as NonNegative
from offbeat.core.types import Positive as Positive
from offbeat.core.types import Share as Share
from offbeat.core.types import Whole as Whole

Memory = Annotated[float, Field(ge=0, lt=1), NUMBER]
"""Share of an old value that is kept in a running mean or a momentum."""

Steps = Annotated[Count | None, Field(description="local steps Q of a task")]
Epochs = Annotated[Count | None, Field(description="local epochs E of a task, instead of steps")]
Concurrency = Annotated[Count | None, Field(description="clients training at the same time; None means all")]
ServerRate = Annotated[Positive, Field(description="server learning rate η_g")]
ProximalWeight = Annotated[
    NonNegative, Field(description="weight of the proximal term, halved as in (μ/2)‖w − w_o‖²")
]
