"""Bit budgets of sparse vectors (Equation 10 of Hu, Chen and Larsson).

Naming r of d coordinates takes log2 C(d, r) bits, and each of them c bits for its value. With 32 bits for
the norm,

    cost(r) = log2 C(d, r) + 32 + c r ,        c = ⌈log2(ν + 1)⌉ + 1 .

From r − 1 to r the cost grows by log2((d − r + 1) / r) + c, which falls with r: the cost rises up to
r = ⌊2^c (d + 1) / (2^c + 1)⌋ and falls from there to 32 + c d at r = d, where no index is needed. So a
budget of 32 + c d or more covers every coordinate, and a smaller one nothing beyond the top of the rise,
since all of that costs more than 32 + c d. Within the rise r is found by bisection.

log2 C(d, r) comes from log-gamma, within 1e-5 bits up to d = 1e8. It is a whole number only for r = 0, 1,
d − 1 and d (by Sylvester's theorem), and there it is exact: a budget of whole bits is met exactly.

>>> bits_needed(21_840, 21_840, 4)
87392.0
>>> largest_r(21_840, 60_000, 4)
9592
"""

from math import ceil, comb, lgamma, log, log2

from offbeat.core.errors import UsageError

NORM_BITS = 32
# Up to this number of coordinates in (or out), the binomial coefficient is computed as an integer.
_EXACT = 32


def value_bits(levels: int) -> int:
    """Bits of a value, ⌈log2(ν + 1)⌉ + 1: a level from 0 to ν and a sign."""
    return levels.bit_length() + 1


def index_bits(d: int, r: int) -> float:
    """Bits of the indices of r of d coordinates, log2 C(d, r)."""
    few = min(r, d - r)
    if few <= _EXACT:
        return log2(comb(d, few))
    return (lgamma(d + 1) - lgamma(r + 1) - lgamma(d - r + 1)) / log(2)


def sparse_bits(d: int, r: int, each: int, fixed: int) -> float:
    """Bits of r of d coordinates, log2 C(d, r) + fixed + each · r."""
    return index_bits(d, r) + fixed + each * r


def largest_sparse(d: int, bits: int | None, each: int, fixed: int, most: int | None = None) -> int:
    """The largest number of coordinates within a budget.

    Args:
        d: Number of coordinates of the vector.
        bits: The budget. None means no budget.
        each: Bits of a value.
        fixed: Bits of all values together, such as those of the norm.
        most: Upper limit of r. None means d.

    Returns:
        The largest r ≤ `most` with `sparse_bits(d, r, each, fixed)` ≤ `bits`, or 0.
    """
    most = d if most is None else most
    if bits is None or sparse_bits(d, most, each, fixed) <= bits:
        return most
    # The cost rises from `low` to `high`.
    low, high = 0, min(most, 2**each * (d + 1) // (2**each + 1))
    while low < high:
        middle = (low + high + 1) // 2
        if sparse_bits(d, middle, each, fixed) <= bits:
            low = middle
        else:
            high = middle - 1
    return low


def bits_needed(d: int, r: int, levels: int) -> float:
    """Left side of Equation 10: the bits of r of d coordinates with ν = `levels`."""
    return sparse_bits(d, r, value_bits(levels), NORM_BITS)


def largest_r(d: int, bits: int | None, levels: int) -> int:
    """The largest r that satisfies Equation 10: 0 if not even the norm fits, d if `bits` is None."""
    return largest_sparse(d, bits, value_bits(levels), NORM_BITS)


def share(d: int, fraction: float) -> int:
    """Most coordinates of d that may be kept, ⌈fraction · d⌉."""
    return min(d, ceil(fraction * d))


def refuse(kind: str, bits: int | None, needed: int) -> None:
    """Raises `UsageError` for a budget below the bits that a codec needs for every coordinate."""
    if bits is not None and bits < needed:
        raise UsageError(
            f"bits = {bits} is not enough for codec {kind}: this vector takes {needed}; give at least "
            f"{needed}, or take a codec that keeps some coordinates only (sparse_quantised, top_k)"
        )
