"""Promises of a run's options of privacy to a site, and how a later offer falls short of them."""

from collections.abc import Collection, Iterator
from math import inf

from offbeat.core.privacy.ledger import noise_multiplier
from offbeat.core.privacy.privacy_options import Noise, Privacy, Secure


def shortfall(promised: Privacy | None, offered: Privacy | None, allowed: Collection[str] = ()) -> str | None:
    """The first thing in which a run offers less privacy than it has promised, in words; None means nothing.

    Args:
        promised: The options that the run has had. None means that it had none, and promised nothing.
        offered: The options that it has now.
        allowed: Names of the helpers that the site's policy names, whom it takes in place of others.
    """
    if promised is None:
        return None
    if offered is None:
        return f"{_kinds(promised)}, now no privacy"
    return next(_shortfalls(promised, offered, allowed), None)


def _shortfalls(promised: Privacy, offered: Privacy, allowed: Collection[str]) -> Iterator[str]:
    """Each thing in which an offer falls short, the gravest first."""
    if promised.secure is not None:
        yield from _secure(promised, offered, promised.secure, allowed)
    if promised.noise is not None:
        yield from _noise(promised, offered, promised.noise)
    assert promised.clip is not None
    assert offered.clip is not None
    if offered.fewest < promised.fewest:
        yield f"least = {promised.fewest}, now {offered.fewest}"
    if offered.clip > promised.clip:
        yield f"clip = {promised.clip:g}, now {offered.clip:g}"
    if offered.labels is not None and promised.labels is None:
        yield "labels that stay at the sites, now labels: public"


def _secure(promised: Privacy, offered: Privacy, secure: Secure, allowed: Collection[str]) -> Iterator[str]:
    now = offered.secure
    if now is None:
        yield "secure aggregation, now none"
        return
    if set(now.helpers) != set(secure.helpers) and not set(now.helpers) <= set(allowed):
        yield f"the helpers {', '.join(secure.helpers)}, now {', '.join(now.helpers)}"
    if now.most_colluding < secure.most_colluding:
        yield f"colluding = {secure.most_colluding}, now {now.most_colluding}"
    if offered.colluding_clients < promised.colluding_clients:
        yield f"colluding_clients = {promised.colluding_clients}, now {offered.colluding_clients}"
    if offered.dominance > promised.dominance:
        yield f"dominance = {promised.dominance:g}, now {offered.dominance:g}"


def _noise(promised: Privacy, offered: Privacy, noise: Noise) -> Iterator[str]:
    now, before, after = offered.noise, noise_multiplier(promised), noise_multiplier(offered)
    if now is None:
        yield f"noise of multiplier {before:g}, now none"
        return
    if after < before:
        yield f"noise of multiplier {before:.6g}, now {after:.6g}"
    if _limit(now) > _limit(noise):
        yield f"a budget of {_budget(noise)}, now {_budget(now)}"
    if now.budget.delta > noise.budget.delta:
        yield f"delta = {noise.budget.delta:g}, now {now.budget.delta:g}"
    if now.bands > noise.bands:
        yield f"bands = {noise.bands}, now {now.bands}"
    if noise.accounting == "zcdp" != now.accounting:
        yield f"accounting = {noise.accounting}, now {now.accounting}"


def _limit(noise: Noise) -> float:
    return inf if noise.budget.epsilon is None else noise.budget.epsilon


def _budget(noise: Noise) -> str:
    return "no limit" if noise.budget.epsilon is None else f"epsilon = {noise.budget.epsilon:g}"


def _kinds(privacy: Privacy) -> str:
    """The kind of privacy, in words."""
    secure = [] if privacy.secure is None else ["secure aggregation"]
    noise = [] if privacy.noise is None else [f"noise of multiplier {noise_multiplier(privacy):.6g}"]
    return " and ".join(secure + noise)
