"""Laws: distributions of a client's speed, bandwidth or delay.

Each is a frozen dataclass with a `law` that names it in a recipe, and `draw(rng)`, which returns one number
above 0. Each names the papers that use it. Means and the like are in the unit of the quantity (seconds, bits
per second).
"""

from collections.abc import Sequence
from math import isinf
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from offbeat.core.errors import UsageError
from offbeat.core.types import NUMBER, NonNegative, Positive, Share
from offbeat.core.validation import checked_dataclass
from offbeat.lazy import listing

__all__ = [
    "Constant",
    "Exponential",
    "Law",
    "LogNormal",
    "MeanRatio",
    "Normal",
    "Pareto",
    "Ratio",
    "Uniform",
    "Zipf",
]
__dir__ = listing(__name__)


@checked_dataclass
class Constant:
    """The constant `mean` (FedCompass's homogeneous clients)."""

    mean: Positive
    law: Literal["constant"] = "constant"

    def draw(self, rng: np.random.Generator) -> float:
        """The constant."""
        return self.mean


@checked_dataclass
class Normal:
    """N(mean, (std · mean)²), never below 5 % of the mean (FedCompass: std = 0.3)."""

    mean: Positive
    std: NonNegative = 0.3
    law: Literal["normal"] = "normal"

    def draw(self, rng: np.random.Generator) -> float:
        """One draw."""
        return max(0.05 * self.mean, float(rng.normal(self.mean, self.std * self.mean)))


@checked_dataclass
class Exponential:
    """Exp(mean), never below `minimum` · mean (FedCompass; its minimum is 0).

    The mean of 1/x is infinite without a minimum: a single client may then do most of the work.
    """

    mean: Positive
    minimum: Share = 0.0
    law: Literal["exponential"] = "exponential"

    def draw(self, rng: np.random.Generator) -> float:
        """One draw."""
        return max(self.minimum * self.mean, self.mean * rng.standard_exponential(), 1e-12 * self.mean)


@checked_dataclass
class Uniform:
    """U(low, high) (the wireless paper's training times)."""

    low: Positive
    high: Positive
    law: Literal["uniform"] = "uniform"

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low = {self.low} must not be above high = {self.high}")
        return self

    def draw(self, rng: np.random.Generator) -> float:
        """One draw."""
        return float(rng.uniform(self.low, self.high))


@checked_dataclass
class Ratio:
    """U(fastest, ratio · fastest) (FedASMU: training times with ratios 5, 110 and 440)."""

    fastest: Positive
    ratio: Annotated[float, Field(ge=1, allow_inf_nan=False), NUMBER]
    law: Literal["ratio"] = "ratio"

    @model_validator(mode="after")
    def _finite(self) -> Self:
        if isinf(self.fastest * self.ratio):
            raise ValueError(
                f"fastest = {self.fastest:g} times ratio = {self.ratio:g} is infinite: give less"
            )
        return self

    def draw(self, rng: np.random.Generator) -> float:
        """One draw."""
        return float(rng.uniform(self.fastest, self.fastest * self.ratio))


@checked_dataclass
class MeanRatio:
    """`Ratio` by its mean: U(low, ratio · low) with low = 2 · mean / (1 + ratio).

    A step takes as long in the mean at every ratio. Clients that train all the time do more steps in all
    the larger it is, as the fastest do most: (1 + r) ln r / (2 (r − 1)) each in a mean step's time, 1.2 at
    r = 5 and 3.1 at r = 440.
    """

    mean: Positive
    ratio: Annotated[float, Field(ge=1, allow_inf_nan=False), NUMBER]
    law: Literal["mean_ratio"] = "mean_ratio"

    @model_validator(mode="after")
    def _finite(self) -> Self:
        if isinf(self.mean * 2):
            raise ValueError(f"mean = {self.mean:g} makes the slowest infinite: give less")
        return self

    def draw(self, rng: np.random.Generator) -> float:
        """One draw."""
        low = self.mean / (0.5 + 0.5 * self.ratio)
        return float(rng.uniform(low, self.ratio * low))


@checked_dataclass
class Pareto:
    """Pareto distribution, long-tailed: P(x > v) = (minimum / v)^shape for v ≥ minimum."""

    minimum: Positive
    shape: Positive = 1.5
    law: Literal["pareto"] = "pareto"

    def draw(self, rng: np.random.Generator) -> float:
        """One draw."""
        return self.minimum * float(1 + rng.pareto(self.shape))


@checked_dataclass
class LogNormal:
    """Log-normal distribution, long-tailed: exp(N(ln median, sigma²))."""

    median: Positive
    sigma: NonNegative = 1.0
    law: Literal["lognormal"] = "lognormal"

    def draw(self, rng: np.random.Generator) -> float:
        """One draw."""
        return self.median * float(np.exp(rng.normal(0.0, self.sigma)))


@checked_dataclass
class Zipf:
    """Zipf distribution, long-tailed: `unit` times k ∈ {1, 2, …} with P(k) ∝ k^(−a)."""

    unit: Positive
    a: Annotated[float, Field(gt=1, allow_inf_nan=False), NUMBER] = 2.0
    law: Literal["zipf"] = "zipf"

    def draw(self, rng: np.random.Generator) -> float:
        """One draw."""
        return self.unit * float(rng.zipf(self.a))


Law = Annotated[
    Constant | Normal | Exponential | Uniform | Ratio | MeanRatio | Pareto | LogNormal | Zipf,
    Field(discriminator="law"),
]

PerClient = float | list[float] | Law
"""One number for all clients, a list of one each, or a law drawn from once per client."""


def of_client(quantity: PerClient, client: int, rng: np.random.Generator) -> float:
    """The quantity of one client."""
    if isinstance(quantity, float | int):
        return float(quantity)
    if isinstance(quantity, Sequence):
        return float(quantity[client])
    return quantity.draw(rng)


def check_length(name: str, quantity: object, clients: int) -> None:
    """Raises `UsageError` unless a list has one entry per client."""
    if isinstance(quantity, Sequence) and len(quantity) != clients:
        raise UsageError(f"{name} lists {len(quantity)} values for {clients} clients: give one per client")
