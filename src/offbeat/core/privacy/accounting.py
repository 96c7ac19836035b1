"""Privacy spent by a client: Gaussian differential privacy, over its actual releases and weights.

A client whose update has weight α = c̃ Y/σ in a release spends α² of μ²; with noise in b bands
μ = ‖C_b α‖, where C_b has the coefficients f_0 = 1, f_k = f_{k−1} (1 − 1/(2k)) below its diagonal. So the
published models are μ-GDP for that client (Dong, Roth, Su, Gaussian Differential Privacy, 2022), which is
(ε, δ)-differential privacy for δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ). The strict figure goes by
zero-concentrated privacy (Bun, Steinke, 2016), which holds for the discrete Gaussian as it is.
"""

from collections.abc import Callable, Sequence
from math import erfc, exp, inf, log, log1p, pi, sqrt
from typing import Self

from msgspec import Struct

_LARGEST = 1e4  # μ
_TAIL = -35.0  # from here on erfc loses its digits
_STEPS = 200
_ROWS = 2000  # rows of C_b⁻¹; for up to 64 bands, later ones change no digit


def delta_of(mu: float, epsilon: float) -> float:
    """δ of μ-GDP at this ε (Balle, Wang, 2018)."""
    if not mu:
        return 0.0
    first, second = _log_cdf(mu / 2 - epsilon / mu), _log_cdf(-mu / 2 - epsilon / mu)
    return exp(first) - exp(min(0.0, epsilon + second))


def _log_cdf(x: float) -> float:
    """ln Φ(x). PyTorch has it, too, but `offbeat status` does without PyTorch."""
    if x > -1:
        return log1p(-erfc(x / sqrt(2)) / 2)
    if x > _TAIL:
        return log(erfc(-x / sqrt(2)) / 2)
    # The asymptotic series of Mills' ratio; what is left out is less than 1e-12.
    y = 1 / (x * x)
    return -x * x / 2 - log(-x * sqrt(2 * pi)) + log1p(-y * (1 - 3 * y * (1 - 5 * y * (1 - 7 * y))))


def epsilon_of(mu: float, delta: float) -> float:
    """ε of μ-GDP at this δ; 0 where δ is large enough without any."""
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(mu, high) > delta:
        high *= 2
    return _root(lambda epsilon: delta_of(mu, epsilon) - delta, 0.0, high)


def strict_epsilon_of(mu: float, delta: float) -> float:
    """ε of μ²/2-zCDP at this δ: the least of aμ²/2 + ln(1/(aδ))/(a − 1) + ln(1 − 1/a) over a > 1."""
    if not mu:
        return 0.0

    def bound(t: float) -> float:
        a = 1 + exp(t)
        return a * mu * mu / 2 - log(a * delta) / (a - 1) + log1p(-1 / a)

    low, high = log(1e-6), log(1e8)
    # The bound falls, then rises.
    for _ in range(_STEPS):
        third = (high - low) / 3
        if bound(low + third) > bound(high - third):
            low += third
        else:
            high -= third
    return max(0.0, bound((low + high) / 2))


def largest_mu(epsilon: float, delta: float) -> float:
    """The largest μ of which `epsilon_of` gives at most this ε."""
    return _root(lambda mu: delta_of(mu, epsilon) - delta, 0.0, _LARGEST)


def strict_largest_mu(epsilon: float, delta: float) -> float:
    """The largest μ of which `strict_epsilon_of` gives at most this ε."""
    return _root(lambda mu: strict_epsilon_of(mu, delta) - epsilon, 0.0, _LARGEST)


def coefficients(bands: int) -> list[float]:
    """f_0 … f_{b−1}."""
    found = [1.0]
    for k in range(1, bands):
        found.append(found[-1] * (1 - 1 / (2 * k)))
    return found


def largest_deviation(bands: int) -> float:
    """The standard deviation of a release's noise, at most, in units of σ: the norm of C_b⁻¹'s last row.

    It is 1 for independent noise, and up to 1.16 for bands, which take back what was added before.
    """
    f, inverse = coefficients(bands), [1.0]
    for i in range(1, _ROWS if bands > 1 else 1):
        inverse.append(-sum(f[k] * inverse[i - k] for k in range(1, min(bands - 1, i) + 1)))
    return sqrt(sum(g * g for g in inverse))


def overlaps(bands: int) -> list[float]:
    """h_k = Σ_j f_j f_{j+k}, k = 0 … b − 1."""
    f = coefficients(bands)
    return [sum(f[j] * f[j + k] for j in range(bands - k)) for k in range(bands)]


def multiplier_for(releases: int, mu: float, bands: int) -> float:
    """z with which a client may be in `releases` releases in a row: ‖C_b 1‖/μ."""
    h = overlaps(bands)
    squared = releases * h[0] + 2 * sum(max(0, releases - k) * h[k] for k in range(1, bands))
    return sqrt(squared) / mu


class SavedSpent(Struct, frozen=True):
    """What one client has spent, as plain data."""

    squared: float
    releases: int
    recent: dict[int, float]


class Spent:
    """Privacy spent by one client.

    Attributes:
        squared: μ².
        releases: Number of releases it was in.
        recent: The weights of its last releases, by number of release; those of the last b − 1 count.
    """

    def __init__(self) -> None:
        self.squared, self.releases = 0.0, 0
        self.recent: dict[int, float] = {}

    def save(self) -> SavedSpent:
        """The state."""
        return SavedSpent(self.squared, self.releases, dict(self.recent))

    @classmethod
    def load(cls, saved: SavedSpent) -> Self:
        """The state that was saved."""
        spent = cls()
        spent.squared, spent.releases, spent.recent = saved.squared, saved.releases, dict(saved.recent)
        return spent

    @property
    def mu(self) -> float:
        """μ."""
        return sqrt(self.squared)

    def cost(self, release: int, alpha: float, overlap: Sequence[float]) -> float:
        """Increase of μ² by weight α in a release."""
        past = sum(h * self.recent.get(release - k, 0.0) for k, h in enumerate(overlap) if k)
        return overlap[0] * alpha * alpha + 2 * alpha * past

    def charge(self, release: int, alpha: float, overlap: Sequence[float]) -> None:
        """Add weight α in a release, which is later than those before."""
        self.squared += self.cost(release, alpha, overlap)
        self.releases += 1
        bands = len(overlap)
        self.recent = {r: a for r, a in (*self.recent.items(), (release, alpha)) if release - r < bands - 1}

    def allows(self, release: int, count: int, alpha: float, overlap: Sequence[float], most: float) -> bool:
        """Whether `count` releases in a row from this one on, at weight α, leave μ at most `most`."""
        if most == inf:
            return True
        tried = Spent()
        tried.squared, tried.recent = self.squared, self.recent
        for i in range(count):
            tried.charge(release + i, alpha, overlap)
        return tried.mu <= most * (1 + 1e-12)


def _root(rising_or_falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a monotone function changes its sign, between two numbers."""
    up = rising_or_falling(high) > 0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if (rising_or_falling(middle) > 0) == up:
            high = middle
        else:
            low = middle
    return low
