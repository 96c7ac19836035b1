"""Staleness weights s(τ) of updates.

The staleness τ is the number of versions published since the update's base version, taken when it arrives;
0 means fresh. A paper that counts from 1 adds the 1 in its own formula.

>>> PolynomialWeight(alpha=0.9, a=0.5)(3)
0.45
>>> HingeWeight(a=10, b=4)(5)
0.09090909090909091
>>> AgeWeight(gamma=0.5)(3)
0.125
"""

from typing import Annotated, Literal

from pydantic import Field

from offbeat.core.errors import UsageError
from offbeat.core.types import NonNegative, Positive, PositiveShare
from offbeat.core.validation import checked_dataclass


@checked_dataclass
class ConstantWeight:
    """Constant weight, s(τ) = value (FedAsync, Xie et al. 2019).

    Attributes:
        value: The weight, in (0, 1].
    """

    value: PositiveShare = 1.0
    kind: Literal["constant"] = "constant"

    def __call__(self, staleness: int) -> float:
        """The weight of an update `staleness` versions old."""
        return self.value


@checked_dataclass
class PolynomialWeight:
    """Polynomial weight, s(τ) = α (τ + 1)^(−a) (FedAsync, Xie et al. 2019; FedCompass: α = 0.9, a = 0.5).

    Attributes:
        alpha: α, the weight of a fresh update, in (0, 1].
        a: The exponent, at least 0.
    """

    alpha: PositiveShare = 1.0
    a: NonNegative = 0.5
    kind: Literal["polynomial"] = "polynomial"

    def __call__(self, staleness: int) -> float:
        """The weight of an update `staleness` versions old."""
        return float(self.alpha * (staleness + 1.0) ** -self.a)


@checked_dataclass
class HingeWeight:
    """Hinge weight, s(τ) = 1 if τ ≤ b, else 1 / (a(τ − b) + 1) (FedAsync, Xie et al. 2019).

    Attributes:
        a: The slope, above 0.
        b: The largest staleness with weight 1, at least 0.
    """

    a: Positive = 10.0
    b: NonNegative = 4.0
    kind: Literal["hinge"] = "hinge"

    def __call__(self, staleness: int) -> float:
        """The weight of an update `staleness` versions old."""
        return 1.0 if staleness <= self.b else 1.0 / (self.a * (staleness - self.b) + 1.0)


@checked_dataclass
class AgeWeight:
    """Age weight, s(τ) = γ^τ (Hu, Chen, Larsson 2023, Eq. 13).

    γ < 1 favours fresh updates, γ > 1 old ones: a weight above 1 makes sense where weights are divided
    by their sum, as theirs are. Their exponent, the age a = t − s, counts iterations, which are versions
    where each iteration makes one.

    Attributes:
        gamma: γ, above 0.
    """

    gamma: Positive = 1.0
    kind: Literal["age"] = "age"

    def __call__(self, staleness: int) -> float:
        """The weight of an update `staleness` versions old. Raises `UsageError` where it overflows."""
        try:
            return float(self.gamma) ** staleness
        except OverflowError:
            raise UsageError(
                f"gamma = {self.gamma} is not allowed: its power of {staleness}, the age of an update, "
                "is too large a number; give one nearer to 1"
            ) from None


StalenessWeight = Annotated[
    ConstantWeight | PolynomialWeight | HingeWeight | AgeWeight,
    Field(discriminator="kind", description="weight s(τ), such as {kind: polynomial, alpha: 0.9, a: 0.5}"),
]


def constant(value: float = 1.0) -> ConstantWeight:
    """Constant weight, s(τ) = value."""
    return ConstantWeight(value)


def polynomial(alpha: float = 1.0, a: float = 0.5) -> PolynomialWeight:
    """Polynomial weight, s(τ) = α (τ + 1)^(−a)."""
    return PolynomialWeight(alpha, a)


def hinge(a: float = 10.0, b: float = 4.0) -> HingeWeight:
    """Hinge weight, s(τ) = 1 if τ ≤ b, else 1 / (a(τ − b) + 1)."""
    return HingeWeight(a, b)


def age(gamma: float = 1.0) -> AgeWeight:
    """Age weight, s(τ) = γ^τ."""
    return AgeWeight(gamma)


INVERSE_SQRT = PolynomialWeight(1.0, 0.5)
"""s(τ) = (1 + τ)^(−½), FedBuff's weight (Nguyen et al. 2022)."""
