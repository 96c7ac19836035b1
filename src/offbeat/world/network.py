"""Links: transfer times of models to clients and of updates back."""

from offbeat.core.types import NonNegative, Positive
from offbeat.core.validation import checked_dataclass
from offbeat.world.laws import Law


@checked_dataclass
class Network:
    """Links of the clients: a transfer takes latency + bits / bandwidth, each way.

    Each quantity is one number for all clients, a list with one number per client, or a law that is drawn
    once per client.

    Attributes:
        latency: Seconds of a message each way.
        up: Bandwidth to the server in bits per second. None means that the transfer takes no time; a list
            may contain None too.
        down: Bandwidth from the server in bits per second. None has the same meaning as for `up`.
        delay: Law of extra seconds before each upload (FedFa's long-tailed delays). None means no delay.
    """

    latency: NonNegative | list[NonNegative] | Law = 0.0
    up: Positive | list[Positive | None] | Law | None = None
    down: Positive | list[Positive | None] | Law | None = None
    delay: Law | None = None

    @property
    def free(self) -> bool:
        """Whether transfers take no time at all."""
        return self.latency == 0.0 and self.up is None and self.down is None and self.delay is None
