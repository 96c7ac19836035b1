"""What clients have spent: figures of the literature, by hand, and against dense matrices."""

from math import inf, sqrt

import numpy as np
import pytest
import torch

from offbeat.core.privacy.accounting import (
    Spent,
    _log_cdf,
    coefficients,
    delta_of,
    epsilon_of,
    largest_deviation,
    largest_mu,
    multiplier_for,
    overlaps,
    strict_epsilon_of,
    strict_largest_mu,
)

DELTA = 1e-5


@pytest.mark.parametrize(
    ("mu", "epsilon"), [(0.5, 1.9931), (1, 4.3772), (2, 9.9973), (3, 16.6755), (5, 33.1037)]
)
def test_epsilon_of_gaussian_privacy(mu: float, epsilon: float) -> None:
    assert epsilon_of(mu, DELTA) == pytest.approx(epsilon, abs=1e-4)
    assert delta_of(mu, epsilon) == pytest.approx(DELTA, rel=1e-3)
    assert 1.04 < strict_epsilon_of(mu, DELTA) / epsilon < 1.1


@pytest.mark.parametrize(("epsilon", "mu"), [(1, 0.2681), (2, 0.5016), (4, 0.9249), (8, 1.6660)])
def test_mu_of_a_budget(epsilon: float, mu: float) -> None:
    assert largest_mu(epsilon, DELTA) == pytest.approx(mu, abs=1e-4)
    assert epsilon_of(largest_mu(epsilon, DELTA), DELTA) == pytest.approx(epsilon, rel=1e-9)
    strict = strict_largest_mu(epsilon, DELTA)
    assert strict < largest_mu(epsilon, DELTA)
    assert strict_epsilon_of(strict, DELTA) == pytest.approx(epsilon, rel=1e-6)


def test_releases_of_uneven_weights() -> None:
    spent = Spent()
    for release, alpha in enumerate((0.3, 0.11, 0.5, 0.27, 0.4)):
        spent.charge(release, alpha, overlaps(1))
    assert spent.mu == pytest.approx(0.765, abs=5e-4)
    assert epsilon_of(spent.mu, DELTA) == pytest.approx(3.21782, abs=1e-5)
    assert spent.releases == 5


def test_bands_by_hand() -> None:
    assert coefficients(4) == [1.0, 0.5, 0.375, 0.3125]
    spent = Spent()
    for release in (0, 2, 9):
        spent.charge(release, 1.0, overlaps(4))
    h = overlaps(4)
    assert spent.squared == pytest.approx(3 * h[0] + 2 * h[2])
    assert spent.squared == pytest.approx(5.52734375)


@pytest.mark.parametrize("bands", [1, 2, 3, 16, 64])
def test_the_noise_of_a_release_is_no_longer_than_the_last_row_of_the_inverse(bands: int) -> None:
    f, size = coefficients(bands), 400
    dense = sum(f[k] * np.eye(size, k=-k) for k in range(bands))
    rows = np.linalg.norm(np.linalg.inv(dense), axis=1)
    assert rows.max() <= largest_deviation(bands) * (1 + 1e-12)
    assert largest_deviation(bands) == pytest.approx(rows[-1], rel=1e-3)
    assert largest_deviation(bands) == (1 if bands == 1 else pytest.approx(1.145, abs=0.016))


def test_bands_are_the_norm_of_a_matrix() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        releases, bands = int(rng.integers(1, 40)), int(rng.integers(1, 17))
        alpha = rng.uniform(0, 1, releases) * (rng.uniform(size=releases) < 0.5)
        f = coefficients(bands)
        dense = np.array([[f[i - j] if 0 <= i - j < bands else 0 for j in range(releases)]
                          for i in range(releases + bands)])  # fmt: skip
        spent = Spent()
        for release in np.flatnonzero(alpha):
            spent.charge(int(release), float(alpha[release]), overlaps(bands))
        assert spent.mu == pytest.approx(float(np.linalg.norm(dense @ alpha)), abs=1e-9)


@pytest.mark.parametrize("bands", [1, 4, 16])
def test_a_budget_lasts_for_the_releases_it_was_made_for(bands: int) -> None:
    mu = largest_mu(8, DELTA)
    alpha, overlap, spent = 1 / multiplier_for(20, mu, bands), overlaps(bands), Spent()
    assert spent.allows(0, 20, alpha, overlap, mu)
    assert not spent.allows(0, 21, alpha, overlap, mu)
    for release in range(20):
        assert spent.allows(release, 1, alpha, overlap, mu)
        spent.charge(release, alpha, overlap)
    assert not spent.allows(20, 1, alpha, overlap, mu)
    assert spent.allows(20, 1, alpha, overlap, inf)
    if bands == 1:
        assert multiplier_for(20, mu, 1) == pytest.approx(sqrt(20) / mu)


def test_nothing_spent_is_nothing_told() -> None:
    assert delta_of(0.0, 1.0) == epsilon_of(0.0, DELTA) == strict_epsilon_of(0.0, DELTA) == 0.0


@pytest.mark.thorough
def test_epsilon_is_that_of_dp_accounting() -> None:
    """Of its privacy loss distributions, on 50 random sequences of releases."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    rng = np.random.default_rng(1)
    for _ in range(50):
        alphas = rng.uniform(0.02, 0.6, int(rng.integers(1, 12)))
        spent = Spent()
        for release, alpha in enumerate(alphas):
            spent.charge(release, float(alpha), overlaps(1))
        composed = pld.identity(1e-4)
        for alpha in alphas:
            composed = composed.compose(
                pld.from_gaussian_mechanism(1 / float(alpha), value_discretization_interval=1e-4)
            )
        assert epsilon_of(spent.mu, DELTA) == pytest.approx(composed.get_epsilon_for_delta(DELTA), abs=1e-3)


@pytest.mark.parametrize("x", [-1e4, -100.0, -35.1, -34.9, -9.0, -1.01, -0.99, 0.0, 3.0, 9.0])
def test_the_logarithm_of_the_normal_distribution_is_pytorchs(x: float):
    theirs = torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)).item()
    assert _log_cdf(x) == pytest.approx(theirs, rel=1e-13)
