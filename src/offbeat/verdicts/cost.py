"""Costs up to a target, and the advantage of one cost over another."""

from dataclasses import dataclass
from math import log


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost up to a target, or what a run has spent without reaching the target.

    The cost of a diverged run is infinite, because the run would never have reached the target.
    """

    amount: float
    reached: bool


def log_ratio(better: Cost, other: Cost) -> float | None:
    """The logarithm of the other's cost over the better one's, limited to what both runs have spent.

    Args:
        better: Cost of the run that the claim says is ahead, above 0.
        other: Cost of the other run.

    Returns:
        The advantage. None means that neither run reached the target within the limit.
    """
    horizon = min((cost.amount for cost in (better, other) if not cost.reached), default=float("inf"))
    restricted = [min(cost.amount, horizon) for cost in (better, other)]
    if min(restricted) >= horizon:
        return None
    least = min((amount for amount in restricted if amount > 0), default=1.0)
    # A run may be at the target from the start, with a cost of 0.
    ahead, behind = (max(amount, least * 1e-3) for amount in restricted)
    return log(behind / ahead)
