"""The radio uplink of a world: fading, received power, and the capacity of a channel.

Hu, Chen, Larsson, Scheduling and Aggregation Design for Asynchronous Federated Learning over Wireless
Networks, 2023, Sections II-C and V. The channel of client k in iteration t carries

    C_k(t) = log2(1 + SNR_k |h_k(t)|²),  SNR_k = P_k β_k / σ_w²  (Eq. 8)

bits per symbol. It is constant within an iteration and drawn anew for the next (block fading). Every draw
comes from a stream keyed by (client, iteration): on demand, in any order, always the same.

Units: seconds, watts, symbols, bits per symbol. Names that end in `_db` are in dB, 10 log10 of a ratio of
powers. Gains |h|², β and SNRs are plain ratios of powers.
"""

from collections.abc import Sequence
from math import log, log1p, sqrt
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.core.errors import UsageError
from offbeat.core.streams import Purpose, StreamCursor, check_seed
from offbeat.core.types import NUMBER, Count, NonNegative, Positive
from offbeat.core.validation import checked_dataclass
from offbeat.world.laws import Law, PerClient, check_length, of_client

Decibels = Annotated[float, Field(ge=-300, le=300), NUMBER]
OfIterations = Annotated[list[NonNegative], Field(min_length=1)]


@checked_dataclass
class Shadowing:
    """Log-normal shadowing: the gain is multiplied by 10^(X / 10), X ~ N(0, sigma_db²).

    Its median is 1 and its mean is above 1.

    Attributes:
        sigma_db: Standard deviation in dB, from 0 to 100.
        per: "client" draws once per client, like an obstacle that stays where it is. "draw" draws once per
            client and iteration.
    """

    sigma_db: Annotated[float, Field(ge=0, le=100), NUMBER]
    per: Literal["client", "draw"] = "client"

    def draw(self, rng: np.random.Generator) -> float:
        """One factor (a ratio of powers)."""
        return float(10 ** (rng.normal(0.0, self.sigma_db) / 10))


@checked_dataclass
class Rayleigh:
    """Rayleigh fading (the paper's): h ~ CN(0, 1), so |h|² ~ Exp(1); no path dominates."""

    shadowing: Shadowing | None = None
    law: Literal["rayleigh"] = "rayleigh"

    def gain(self, client: int, iteration: int, rng: np.random.Generator) -> float:
        """|h|² of one client in one iteration, a ratio of powers with mean 1."""
        return float(rng.exponential())


@checked_dataclass
class Rician:
    """Rician fading: h ~ √(K / (K + 1)) + CN(0, 1 / (K + 1)), E|h|² = 1.

    A direct path has K times the power of all other paths. K = 0 is Rayleigh fading. With a large K, there is
    hardly any fading.

    Attributes:
        k: K, a plain ratio of powers, not in dB.
        shadowing: Shadowing of the gain. None means none.
    """

    k: NonNegative
    shadowing: Shadowing | None = None
    law: Literal["rician"] = "rician"

    def gain(self, client: int, iteration: int, rng: np.random.Generator) -> float:
        """|h|² of one client in one iteration, a ratio of powers with mean 1."""
        re, im = rng.normal(0.0, sqrt(0.5 / (self.k + 1)), size=2)
        return float((sqrt(self.k / (self.k + 1)) + re) ** 2 + im**2)


@checked_dataclass
class Trace:
    """Recorded fading. After the last gain, a client's list begins again.

    A channel that kept its last gain would no longer fade.

    Attributes:
        gains: For each client a list of the gains |h|², one gain per iteration from iteration 0 on. The lists
            may have different lengths. A list of one gain is a channel that never changes.
        shadowing: Shadowing of the gain. None means none.
    """

    gains: Annotated[list[OfIterations], Field(min_length=1)]
    shadowing: Shadowing | None = None
    law: Literal["trace"] = "trace"

    def gain(self, client: int, iteration: int, rng: np.random.Generator) -> float:
        """|h|² of one client in one iteration, a ratio of powers."""
        own = self.gains[client]
        return own[iteration % len(own)]


Fading = Annotated[Rayleigh | Rician | Trace, Field(discriminator="law")]


@checked_dataclass
class LargeScale:
    """Received power without power control: SNR_k = P_k β_k / σ_w² (Eq. 8).

    `beta` and `power` are one number for all clients, a list with one number per client, or a law that is
    drawn from once per client.

    Attributes:
        beta: β_k, the large-scale gain of the path: received over transmitted power, a plain ratio.
        noise: σ_w², the noise power in watts over the same band.
        power: P_k, the transmit power in watts.
    """

    beta: Positive | list[Positive] | Law
    noise: Positive
    power: Positive | list[Positive] | Law = 0.1


@checked_dataclass
class Channel:
    """The uplink that all clients share. `Radio` draws from it with the run's seed.

    Attributes:
        symbols: n, the symbols that clients share in an iteration.
        period: Length in seconds of an iteration with n symbols; the paper's is T_max/4. An iteration of
            another length has its share of n. None means n symbols in every iteration.
        snr_db: Mean received SNR in dB: one number for all, as under power control (the paper: 13), a list
            with one number per client, or a `LargeScale` from which each client's SNR follows. It is the
            mean over the fading; with shadowing it is also the median over the shadowing.
        fading: Small-scale fading, drawn per client and iteration.
    """

    symbols: Count = 300_000
    period: Positive | None = None
    snr_db: Decibels | list[Decibels] | LargeScale = 13.0
    fading: Fading = Rayleigh()

    def symbols_in(self, seconds: float) -> float:
        """Symbols of an iteration of `seconds`: n · seconds / period; n without a period."""
        return float(self.symbols) if self.period is None else self.symbols * seconds / self.period

    def check(self, clients: int) -> None:
        """Raises `UsageError` unless every list has one entry per client."""
        if isinstance(self.fading, Trace):
            check_length("channel.fading.gains", self.fading.gains, clients)
        if isinstance(self.snr_db, LargeScale):
            check_length("channel.snr_db.beta", self.snr_db.beta, clients)
            check_length("channel.snr_db.power", self.snr_db.power, clients)
        check_length("channel.snr_db", self.snr_db, clients)


class Radio:
    """The channels of one run: the draws of a `Channel` under a seed.

    Clients and iterations count from 0. Nothing is drawn before it is needed, and the same arguments give the
    same number. Draws made once per client are cached.

    Args:
        channel: The world's channel.
        seed: The run's seed, from 0 to 2⁶³ − 1.
    """

    def __init__(self, channel: Channel, seed: int) -> None:
        self._channel, self._streams = channel, StreamCursor(check_seed(seed))
        self._snr: dict[int, float] = {}

    def snr(self, client: int) -> float:
        """A client's SNR without fading, a ratio of powers: P_k β_k / σ_w², with its own shadowing."""
        if client not in self._snr:
            self._snr[client] = self._draw_snr(client)
        return self._snr[client]

    def gain(self, client: int, iteration: int) -> float:
        """|h_k(t)|² of a client in an iteration, with its shadowing: a ratio of powers.

        Raises:
            UsageError: The client or the iteration is negative, or a list has no entry for the client.
        """
        if client < 0 or iteration < 0:
            raise UsageError(f"client {client} in iteration {iteration}: both count from 0")
        fading = self._channel.fading
        self._check_listed("fading.gains", fading.gains if isinstance(fading, Trace) else None, client)
        # Iteration 0 of the stream is the draw that is made once per client.
        rng = self._streams.at(Purpose.CHANNEL, client, iteration + 1)
        h2 = fading.gain(client, iteration, rng)
        if fading.shadowing is not None and fading.shadowing.per == "draw":
            h2 *= fading.shadowing.draw(rng)
        return h2

    def capacity(self, client: int, iteration: int) -> float:
        """C_k(t) in bits per symbol; 0 only where a trace has the gain 0."""
        return log1p(self.snr(client) * self.gain(client, iteration)) / log(2)  # Eq. 8

    def capacities(self, clients: Sequence[int], iteration: int) -> npt.NDArray[np.float64]:
        """C_k(t) in bits per symbol of several clients, float64 [len(clients)], as `capacity` gives each."""
        return np.array([self.capacity(client, iteration) for client in clients], dtype=np.float64)

    def _draw_snr(self, client: int) -> float:
        """Draw a client's SNR from a stream of its own: β_k, then P_k, then shadowing."""
        rng = self._streams.at(Purpose.CHANNEL, client)
        snr, shadowing = self._channel.snr_db, self._channel.fading.shadowing
        if isinstance(snr, LargeScale):
            beta = self._of("snr_db.beta", snr.beta, client, rng)
            ratio = self._of("snr_db.power", snr.power, client, rng) * beta / snr.noise
        else:
            ratio = 10 ** (self._of("snr_db", snr, client, rng) / 10)
        if shadowing is not None and shadowing.per == "client":
            ratio *= shadowing.draw(rng)
        return ratio

    def _of(self, name: str, quantity: PerClient, client: int, rng: np.random.Generator) -> float:
        self._check_listed(name, quantity, client)
        return of_client(quantity, client, rng)

    def _check_listed(self, name: str, quantity: object, client: int) -> None:
        if isinstance(quantity, Sequence) and not 0 <= client < len(quantity):
            raise UsageError(
                f"channel.{name} lists {len(quantity)} values and client {client} has none: "
                "give one per client"
            )
