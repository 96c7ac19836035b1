"""ε of subsampled Gaussian steps: two accountants of Opacus, with one cache of the steps of each kind.

Opacus finds the Rényi divergences of one step anew for each number of steps, which takes most of the time of
an ε. Here those of each noise and probability are found once. The figures are those of Opacus's own
accountants, bit for bit. Opacus is imported where it is used: it is an extra.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import log, sqrt
from typing import Any

History = Sequence[tuple[float, float, int]]
"""Local steps of one kind each: noise, p, number of steps."""

_ERROR = 0.01  # of ε, that the exact accountant may add
# Numerical errors may take one part in this number of δ.
_SHARE = 1000
# Opacus adds this margin to the domain as well.
_MARGIN = 3.0


def renyi_epsilon(history: History, delta: float) -> float:
    """ε by Rényi divergences, whose bound is loose: at once, from the second time on."""
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import get_privacy_spent

    total = sum(_renyi_divergences(noise, rate) * steps for noise, rate, steps in history)
    return float(get_privacy_spent(orders=RDPAccountant.DEFAULT_ALPHAS, rdp=total, delta=delta)[0])


def exact_epsilon(history: History, delta: float) -> float:
    """ε by the distribution of the privacy loss (Gopi et al., 2021); its time grows with ε √steps."""
    from opacus.accountants.analysis import prv

    lost, counts = delta / _SHARE, [steps for _, _, steps in history]
    largest = max(_ERROR, _largest_loss(history, lost)) + _MARGIN
    mesh = _ERROR / sqrt(sum(counts) * log(12 / lost) / 2)
    domain = prv.Domain.create_aligned(-largest, largest, mesh)
    losses = [
        prv.discretize(
            prv.TruncatedPrivacyRandomVariable(
                prv.PoissonSubsampledGaussianPRV(rate, noise), domain.t_min, domain.t_max
            ),
            domain,
        )
        for noise, rate, _ in history
    ]
    return float(prv.compose_heterogeneous(losses, counts).compute_epsilon(delta, lost, _ERROR)[2])


def _largest_loss(history: History, lost: float) -> float:
    """The loss that all steps together, or one of them, go beyond with too small a probability to count."""
    steps = sum(number for _, _, number in history)
    alone = [renyi_epsilon([(noise, rate, 1)], lost / (8 * steps)) for noise, rate, _ in history]
    return max(renyi_epsilon(history, lost / 4), *alone)


@lru_cache(maxsize=64)
def _renyi_divergences(noise: float, rate: float) -> Any:
    """The Rényi divergences of one step, by order."""
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import compute_rdp

    found = compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=RDPAccountant.DEFAULT_ALPHAS)
    found.flags.writeable = False
    return found
