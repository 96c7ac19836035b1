"""What an exact sum of weighted integers tells beyond the real-valued sum: nothing, for the dither.

S = c̃_1 y_1 + c̃_2 y_2 modulo one weight depends on the other update alone, as in a knapsack. Weights of 8
bits without dither give the updates away. With the normal dither of 1.5 · 2^w nothing can be told from
residues; a uniform dither of ±2^w is not enough.
"""

from math import ceil, erf, sqrt

import numpy as np
import numpy.typing as npt
import pytest

from offbeat.core.privacy.sums import SumGrid, _normals

GRID = SumGrid(10, 4, clip=1.0, parameters=100, dithered=True)
UNIFORM = 16
PAIRS = ((15, 8), (15, 11), (15, 14), (11, 8), (15, 1), (13, 7))
Floats = npt.NDArray[np.float64]


def decoded(total: npt.NDArray[np.int64], a: int, b: int) -> npt.NDArray[np.int64]:
    """The likeliest y_1 of a y_1 + b y_2 = S, for weights without a common divisor."""
    residue = total * pow(a, -1, b) % b
    return residue + b * np.rint((a * total / (a * a + b * b) - residue) / b).astype(np.int64)


@pytest.mark.parametrize(("weights", "dithered"), [((255, 128), False), ((15, 8), True)])
def test_integers_of_many_bits_give_updates_away_and_dithered_ones_do_not(
    weights: tuple[int, int], dithered: bool
) -> None:
    a, b = weights
    size, rng = 50_000, np.random.default_rng(0)
    step = 64 * a / (2**31 - 1)  # γ for C = 1 and M = 64
    x = 0.8e-3 * rng.standard_normal((2, size))  # two updates of 10^6 coordinates, a part of them
    y = np.floor(x / step + rng.random((2, size))).astype(np.int64)
    if dithered:
        y += np.rint(
            GRID.dither * np.stack([_normals(bytes(32), 0, size), _normals(bytes(32), 1, size)])
        ).astype(np.int64)
    right = (decoded(a * y[0] + b * y[1], a, b) == y[0]).mean()
    assert right < 0.05 if dithered else right >= 0.8


def probabilities(kind: str) -> tuple[Floats, int]:
    """Of each value of a dither, from −B to B."""
    if kind == "none":
        return np.ones(1), 0
    if kind == "uniform":
        return np.full(2 * UNIFORM + 1, 1 / (2 * UNIFORM + 1)), UNIFORM
    most, sd = ceil(7 * GRID.dither), GRID.dither
    below = np.array([erf((k - 0.5) / (sd * sqrt(2))) for k in range(-most, most + 2)])
    found = np.diff(below)
    return found / found.sum(), most


def explained(a: int, b: int, sd: float, kind: str, draws: int = 20_000) -> float:
    """R² of the best estimate of x_1 from S, less that from the real-valued sum; x normal on integers."""
    rng, reach = np.random.default_rng(1), int(5 * sd) + 2
    values = np.arange(-reach, reach + 1)
    prior = np.exp(-(values**2) / (2 * sd * sd))
    prior /= prior.sum()
    dither, most = probabilities(kind)
    sums = np.arange(-reach - most, reach + most + 1)
    mass = np.convolve(prior, dither)
    mean = np.convolve(prior * values, dither) / np.maximum(mass, 1e-300)
    x = rng.choice(values, size=(draws, 2), p=prior)
    y = x + rng.choice(np.arange(-most, most + 1), size=(draws, 2), p=dither)
    total, weighted, weight = y @ np.array([a, b]), np.zeros(draws), np.zeros(draws)
    for place, y1 in enumerate(sums):
        rest = total - a * y1
        k = rest // b + reach + most
        fits = (rest % b == 0) & (k >= 0) & (k < len(sums))
        p = np.where(fits, mass[np.clip(k, 0, len(sums) - 1)] * mass[place], 0)
        weighted += p * mean[place]
        weight += p
    error = ((x[:, 0] - weighted / weight) ** 2).mean() / (x[:, 0] ** 2).mean()
    return float(1 - error - a * a / (a * a + b * b))


def test_the_best_estimate_knows_no_more_than_from_the_real_sum() -> None:
    assert explained(15, 8, 5.0, "normal", 4000) <= 0.06  # sampling error of 4000 draws
    assert explained(15, 8, 1.0, "none", 4000) > 0.2  # all that was hidden


@pytest.mark.thorough
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("sd", [1, 5, 20, 60, 150])
def test_no_estimate_of_any_pair_of_weights_knows_more(pair: tuple[int, int], sd: float) -> None:
    assert explained(*pair, sd, "normal") <= 0.03
    assert explained(*pair[::-1], sd, "normal") <= 0.03


def guesses(kind: str, trials: int = 400, size: int = 1024) -> float:
    """How often residues tell rightly whether the second client has changed a block of coordinates."""
    rng, (dither, most) = np.random.default_rng(2), probabilities(kind)
    a, b = 15, 14
    residues = np.bincount(np.arange(-most, most + 1) % a, weights=dither, minlength=a)
    right = 0
    for trial in range(trials):
        changed = trial % 2
        x = np.rint(60 * rng.standard_normal((2, size))).astype(np.int64) * np.array([[1], [changed]])
        if kind == "normal":  # the dither of the grid, as sites draw it
            seeds = rng.bytes(32), rng.bytes(32)
            own = np.rint(GRID.dither * np.stack([_normals(seed, 0, size) for seed in seeds])).astype(
                np.int64
            )
        else:
            own = rng.integers(-most, most + 1, (2, size))
        y = x + own
        seen = (a * y[0] + b * y[1]) % a * pow(b, -1, a) % a
        right += (np.log(residues[seen] * a).sum() < 0) == changed
    return right / trials


def test_residues_tell_nothing_of_who_changed_a_block() -> None:
    assert 0.45 <= guesses("normal") <= 0.55
    assert guesses("uniform") > 0.95
