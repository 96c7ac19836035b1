"""Direction and size of each site's updates over time, for the eye of an operator.

A site that leads the model away in small steps stays below every bound on one update. Its updates show it
together: they all point the same way, while those of an honest site scatter around a direction that changes
as the model learns. With u a site's update divided by √steps, *persistence* is ‖Σ ρᵏ u‖ / Σ ρᵏ ‖u‖ over its
past updates, the newest first: 1 if all point the same way, about √((1 − ρ) / (1 + ρ)) = 0.23 if they are
random. *Size* is the mean norm of them beside that of the median site.

It is an estimate from some coordinates of the parameters, and nothing depends on it: it is not recorded, and
begins anew with the server.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from offbeat.core.events import ClientId

COORDINATES, MEMORY, ENOUGH = 1024, 0.9, 10
# Number of updates that are counted together. One after the other, each takes a fraction of the time.
_TOGETHER = 16


@dataclass
class _Way:
    """Sums over a site's updates, the older ones with less weight.

    In double precision no sum of finite updates overflows.
    """

    together: npt.NDArray[np.float64]
    apart: float = 0.0
    weight: float = 0.0
    count: int = 0


class SiteDirections:
    """Direction and size of the accepted updates of each site.

    Args:
        parameters: Number of the model's parameters, which come first in an update.

    Attributes:
        coordinates: Which values of an update are looked at, int64 [at most `COORDINATES`].
    """

    def __init__(self, parameters: int) -> None:
        self._ways: dict[ClientId, _Way] = {}
        # The updates that are not counted yet, the oldest first.
        self._waiting: list[tuple[ClientId, npt.NDArray[np.float32], int]] = []
        rng = np.random.Generator(np.random.Philox(0))
        few = parameters <= COORDINATES
        self.coordinates = np.arange(parameters) if few else rng.integers(0, parameters, COORDINATES)

    def add(self, client: ClientId, values: npt.NDArray[np.float32], steps: int) -> None:
        """Count an accepted update, at the latest when somebody asks.

        Args:
            client: The site's client.
            values: The update at the `coordinates`, which stay as they are.
            steps: Local steps that were done.
        """
        self._waiting.append((client, values, steps))
        if len(self._waiting) == _TOGETHER:
            self._count()

    def _count(self) -> None:
        """Count the updates that wait."""
        for client, values, steps in self._waiting:
            self._count_one(client, values, steps)
        self._waiting.clear()

    def _count_one(self, client: ClientId, values: npt.NDArray[np.float32], steps: int) -> None:
        # For so few values NumPy takes a fraction of PyTorch's time.
        update = values.astype(np.float64)
        update /= sqrt(steps)
        if (way := self._ways.get(client)) is None:
            way = self._ways[client] = _Way(np.zeros_like(update))
        way.together *= MEMORY
        way.together += update
        way.apart = MEMORY * way.apart + _norm(update)
        way.weight = MEMORY * way.weight + 1
        way.count += 1

    def persistence(self, client: ClientId) -> float | None:
        """How much a site's updates point the same way, 0 to 1; None before it has sent ten."""
        self._count()
        way = self._ways.get(client)
        if way is None or way.count < ENOUGH or way.apart == 0:
            return None
        return _norm(way.together) / way.apart

    def sizes(self) -> dict[ClientId, float]:
        """Mean norm of each site's updates, beside that of the median site; empty before two have sent."""
        self._count()
        means = {client: way.apart / way.weight for client, way in self._ways.items()}
        usual = sorted(means.values())[(len(means) - 1) // 2] if len(means) > 1 else 0.0
        return {client: mean / usual for client, mean in means.items()} if usual else {}


def _norm(vector: npt.NDArray[np.float64]) -> float:
    return sqrt(vector @ vector)
