"""Links: how long a model takes to a client and its update takes back."""

from pydantic.dataclasses import dataclass

from offbeat.core.types import NonNegative, Positive
from offbeat.core.validation import STRICT
from offbeat.world.laws import Law


@dataclass(frozen=True, config=STRICT)
class Network:
    """Transfer time = latency + bits / bandwidth, each way, per client.

    `latency` is in seconds, `up` and `down` in bits per second (none, also in a list: free); `delay` is a
    law of extra seconds before each upload (FedFa's long-tailed delays).
    """

    latency: NonNegative | list[NonNegative] | Law = 0.0
    up: Positive | list[Positive | None] | Law | None = None
    down: Positive | list[Positive | None] | Law | None = None
    delay: Law | None = None

    @property
    def free(self) -> bool:
        """Do transfers take no time at all?"""
        return self.latency == 0.0 and self.up is None and self.down is None and self.delay is None
