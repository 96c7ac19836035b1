"""What FedCompass's paper proves: the number of arrival groups and the convergence bound.

Li et al., ICLR 2024, Theorem 1 and Appendix B.

    python examples/fedcompass_theory.py
"""

from math import ceil, log


def groups_at_equilibrium(q_min: int, q_max: int, mu: float) -> int:
    """At stable speeds at most max(1, ⌈log_Q μ⌉) groups remain (Appendix B).

    Q = q_max / q_min must be above 1; `mu` ≥ 1 is the slowest client's seconds per step over the
    fastest one's.
    """
    if q_max <= q_min or mu < 1:
        raise ValueError(f"needs q_min < q_max and mu ≥ 1, got q_min={q_min}, q_max={q_max}, mu={mu}")
    return max(1, ceil(log(mu) / log(q_max / q_min) - 1e-12))


def convergence_bound(
    *,
    T: int,  # noqa: N803 - the paper's letters
    lr: float,
    m: int,
    q_min: int,
    q_max: int,
    mu: float,
    L: float,  # noqa: N803
    F: float,  # noqa: N803
    sigma_l: float,
    sigma_g: float,
    M: float,  # noqa: N803
    tau_max: int,
    as_printed: bool = False,
) -> float:
    """The right side of Theorem 1: a bound on the mean of ‖∇F‖² over T global updates.

    `lr` is η ≤ 1/(2 L q_max), `m` the number of clients, `F` = F(w⁰) − F(w*), `sigma_l`² and `sigma_g`²
    bound the local and global gradient variance, `M` the squared gradient, `tau_max` the staleness.

    The theorem prints μ' = Q^⌈log_Q μ⌉, Appendix B uses the exponent ⌈log_Q μ⌉ − 1, and Corollary 1 needs
    μ' = 1 for μ ≤ Q. The default is Q^max(0, ⌈log_Q μ⌉ − 1), which agrees with both; `as_printed` takes
    the theorem's exponent.
    """
    if q_max <= q_min or mu < 1:
        raise ValueError(f"needs q_min < q_max and mu ≥ 1, got q_min={q_min}, q_max={q_max}, mu={mu}")
    if lr > 1 / (2 * L * q_max):
        raise ValueError(
            f"lr = {lr} is not allowed: Theorem 1 needs lr ≤ 1/(2 L q_max) = {1 / (2 * L * q_max)}"
        )
    Q = q_max / q_min
    exponent = ceil(log(mu) / log(Q) - 1e-12)
    mu_ = Q**exponent if as_printed else Q ** max(0, exponent - 1)
    gamma1, gamma2 = 1 + (m - 1) / mu_, 1 + mu_ * (m - 1)
    sigma2 = sigma_l**2 + sigma_g**2 + M
    start = 2 * gamma2 * F / (lr * q_min * T)
    noise = 2 * gamma2 * lr * m**2 * sigma_l**2 * L * q_max**2 / (gamma1**2 * q_min)
    stale = 6 * gamma2 * m * lr**2 * sigma2 * L**2 * q_max**3 * (tau_max**2 + 1) / (gamma1 * q_min)
    return start + noise + stale


def main() -> None:
    """Groups of a fleet whose slowest client is 20 times slower, and the bound as the updates go on."""
    print(f"at most {groups_at_equilibrium(20, 100, mu=20.0)} groups remain")
    for T in (10_000, 1_000_000):
        bound = convergence_bound(
            T=T, lr=1e-5, m=5, q_min=20, q_max=100, mu=20.0, L=1.0, F=1.0,
            sigma_l=0.1, sigma_g=0.1, M=1.0, tau_max=5,
        )  # fmt: skip
        print(f"after {T} updates the mean of the squared gradient is at most {bound:.3g}")


if __name__ == "__main__":
    main()
