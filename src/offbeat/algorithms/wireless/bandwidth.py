"""Helpers of schedules on a shared radio: equal bits for all, and a diminishing learning rate.

Hu, Chen, Larsson, Scheduling and Aggregation Design for Asynchronous Federated Learning over Wireless
Networks, 2023, Eq. 9. With n symbols for all, C_k bits per symbol on device k's channel and n_k symbols
for it, n_1 C_1 = … = n_|Π| C_|Π| and Σ n_k = n. So a device with a better channel gets fewer symbols.
"""

from collections.abc import Sequence
from math import fsum, isfinite
from typing import Annotated

from msgspec.structs import replace
from pydantic import Field

from offbeat.algorithms.option_types import Positive
from offbeat.core.commands import Train
from offbeat.core.errors import UsageError

Halving = Annotated[
    Positive | None, Field(description="seconds in which the learning rate halves; None means never")
]


def equal_bits(symbols: float, capacities: Sequence[float]) -> tuple[float, list[float]]:
    """The equal-bit allocation (Eq. 9).

    Args:
        symbols: n, the symbols of all devices together; above 0.
        capacities: C_k of each device in bits per symbol; above 0, because no number of symbols carries a bit
            over a channel without capacity.

    Returns:
        The bits of each device, and the list of the symbols n_k in the order given. Both are real numbers, as
        in the paper. A device sends this number of bits, rounded down.

    Raises:
        UsageError: There is no device, or a number is not allowed.
    """
    if not (symbols > 0 and isfinite(symbols)):
        raise UsageError(f"symbols = {symbols} is not allowed: give a number above 0")
    if not len(capacities):
        raise UsageError("capacities is empty: give the bits per symbol of at least one device")
    for k, capacity in enumerate(capacities):
        if not (capacity > 0 and isfinite(capacity)):
            raise UsageError(
                f"capacities[{k}] = {capacity} bits per symbol is not allowed: a device that is to send "
                "needs a channel of more than 0; do not schedule it"
            )
    # In units of the worst C_k, 1 / C_k stays finite.
    worst = float(min(capacities))
    total = fsum(worst / capacity for capacity in capacities)
    bits = symbols / total * worst  # n / Σ_j 1/C_j
    return bits, [symbols / total * (worst / float(c)) for c in capacities]  # n_k = bits / C_k


def with_decayed_lr(task: Train, halving: float | None, now: float) -> Train:
    """The task with its learning rate times halving / (halving + now), both in seconds.

    This is the paper's α(t) = β / (t + κ) for one iteration every T̃ seconds, with κ = halving / T̃. The rate
    falls with time and not with versions, so that a scheme that makes more versions does not learn more
    slowly.
    """
    return task if halving is None else replace(task, lr_factor=task.lr_factor * halving / (halving + now))
