"""Options of a site that few sites need."""

from typing import Annotated

from pydantic import Field

from offbeat.core.types import Count, NonNegative
from offbeat.core.validation import checked_dataclass


@checked_dataclass
class SiteOptions:
    """How a site trains.

    Attributes:
        threads: PyTorch's threads; more may be faster, and change the last bits of the results.
        validation: Share of the data, from 0 to below 1, that is held out for evaluations.
        keep_model: File for the model that the run shares (.safetensors). None means none.
        min_step_seconds: Least duration of a local step in seconds, to try out an algorithm with slow sites.
    """

    threads: Count = 1
    validation: NonNegative = 0.0
    keep_model: Annotated[str, Field(min_length=1)] | None = None
    min_step_seconds: NonNegative = 0.0
