"""FedCompass's Theorem 1 and Appendix B against numbers worked out by hand."""

from pathlib import Path
from runpy import run_path

import pytest

_THEORY = run_path(str(Path(__file__).parents[2] / "examples" / "fedcompass_theory.py"))
convergence_bound = _THEORY["convergence_bound"]
groups_at_equilibrium = _THEORY["groups_at_equilibrium"]


@pytest.mark.parametrize(
    ("q_min", "q_max", "mu", "groups"),
    [
        (20, 100, 1.0, 1),  # log 1 = 0, and at least one
        (20, 100, 5.0, 1),  # log₅ 5
        (20, 100, 5.001, 2),
        (20, 100, 25.0, 2),
        (20, 100, 125.0, 3),  # exactly 3, although log(125)/log(5) = 3.0000000000000004
        (20, 100, 126.0, 4),
        (10, 20, 1000.0, 10),  # 2¹⁰ = 1024
        (1, 10, 1000.0, 3),
    ],
)
def test_groups_at_equilibrium(q_min, q_max, mu, groups):
    assert groups_at_equilibrium(q_min, q_max, mu) == groups


@pytest.mark.parametrize(("q_min", "q_max", "mu"), [(20, 20, 2.0), (30, 20, 2.0), (20, 100, 0.5)])
def test_groups_at_equilibrium_needs_room(q_min, q_max, mu):
    with pytest.raises(ValueError, match="q_min < q_max and mu ≥ 1"):
        groups_at_equilibrium(q_min, q_max, mu)


GIVEN = {
    "T": 100, "lr": 0.01, "m": 3, "q_min": 2, "q_max": 10, "L": 1.0, "F": 4.0,
    "sigma_l": 2.0, "sigma_g": 1.0, "M": 3.0, "tau_max": 2,
}  # fmt: skip


def test_bound_where_all_clients_fit_one_group():
    # Q = 5, μ = 4: μ' = 5⁰ = 1, γ1 = 1 + 2/1 = 3, γ2 = 1 + 1·2 = 3, σ² = 4 + 1 + 3 = 8
    # start: 2·3·4/(0.01·2·100) = 12
    # noise: 2·3·0.01·9·4·1·100/(9·2) = 12
    # stale: 6·3·3·0.0001·8·1·1000·(4 + 1)/(3·2) = 36
    assert convergence_bound(**GIVEN, mu=4.0) == pytest.approx(60.0)


def test_bound_as_printed():
    # μ' = 5¹ = 5: γ1 = 1 + 2/5 = 1.4, γ2 = 1 + 5·2 = 11
    # start: 2·11·4/2 = 44
    # noise: 2·11·0.01·9·4·100/(1.96·2) = 792/3.92 = 202.0408163
    # stale: 6·11·3·0.0001·8·1000·5/(1.4·2) = 792/2.8 = 282.8571429
    assert convergence_bound(**GIVEN, mu=4.0, as_printed=True) == pytest.approx(528.8979592)


def test_bound_with_two_groups_is_what_is_printed_for_one():
    assert convergence_bound(**GIVEN, mu=20.0) == convergence_bound(**GIVEN, mu=4.0, as_printed=True)


def test_bound_at_equal_speeds():
    assert convergence_bound(**GIVEN, mu=1.0) == pytest.approx(60.0)
    assert convergence_bound(**GIVEN, mu=1.0, as_printed=True) == pytest.approx(60.0)  # 5⁰


def test_bound_needs_a_small_learning_rate():
    assert convergence_bound(**{**GIVEN, "lr": 0.05}, mu=1.0) > 0  # 1/(2·1·10), allowed
    with pytest.raises(ValueError, match=r"lr = 0\.051 is not allowed.*0\.05"):
        convergence_bound(**{**GIVEN, "lr": 0.051}, mu=1.0)
