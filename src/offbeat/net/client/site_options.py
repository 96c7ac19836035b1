"""Options of a site that few sites need."""

from offbeat.core.types import Count, NonNegative
from offbeat.core.validation import checked_dataclass


@checked_dataclass
class SiteOptions:
    """How a site trains.

    Attributes:
        threads: PyTorch's threads; more may be faster, and change the last bits of the results.
        min_step_seconds: Least duration of a local step in seconds, to try out an algorithm with slow sites.
    """

    threads: Count = 1
    min_step_seconds: NonNegative = 0.0
