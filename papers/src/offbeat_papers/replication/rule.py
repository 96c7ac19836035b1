"""The frozen rule of the second study, of docs/studies.md#the-second-study."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, sqrt
from statistics import fmean, stdev

from offbeat.verdicts.answers import Quantifier
from offbeat.verdicts.average import Average, Sides
from offbeat.verdicts.multiplicity import LEVEL, false_discovery
from offbeat.verdicts.pair_counts import at_least

LEAST_SEEDS = 3
"""Fewest seeds of a look."""

Advantages = Mapping[int, float | None]
"""Advantage of the claimed arm by seed. None means that neither arm reached any level of the target."""


class Answer(StrEnum):
    """The second study's answer to a claim."""

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    NO_DIFFERENCE = "no difference"
    NOT_REFUTED = "not refuted"
    NOT_DECIDED = "cannot be decided here"
    NOT_RUN = "not run"
    NO_REAL_DATA = "no real data here"


@dataclass(frozen=True)
class FreshClaim:
    """A claim with the advantages of its pairs in the seeds of the look.

    Attributes:
        key: Identity of the claim. Claims that ask the same question of the same numbers have the same key.
        pairs: The advantages of each pair of arms. All pairs have the same seeds.
        question: The pairs about which the claim is. "every" can be refuted, and not confirmed.
        margin: Least advantage of the claimed arm.
        matters: Least size of a difference that matters. None means that no such size is defined.
        reached: For a claim that a label reaches the target in every setting: the number of seeds in which it
            does, by setting. Empty means that the claim compares pairs.
    """

    key: Hashable
    pairs: Sequence[Advantages]
    question: Quantifier = "average"
    margin: float = 0.0
    matters: float | None = None
    reached: Sequence[int] = ()
    seeds: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether all pairs have all seeds of the look, and it has enough of them."""
        if self.reached:
            return self.seeds >= LEAST_SEEDS
        counts = {len(pair) for pair in self.pairs}
        return counts == {self.seeds} and self.seeds >= LEAST_SEEDS


def mean_effect(pairs: Sequence[Advantages], neither: float = 0.0) -> Average:
    """The mean over seeds of the seed's mean over pairs, with Student's t over seeds.

    A seed's runs share initial model, world and partition, over columns too. So the seed is the replicate,
    and the test is exact for normal advantages however columns correlate.

    Args:
        pairs: The pairs, with the same seeds.
        neither: The advantage of a pair of runs that says nothing.
    """
    seeds = [*pairs[0]]
    means = [fmean(_value(pair[seed], neither) for pair in pairs) for seed in seeds]
    error = stdev(means) / sqrt(len(seeds))
    mean = fmean(means)
    # A standard error nearer to 0 is rounding.
    return Average(mean, error if error > 1e-9 * max(1.0, abs(mean)) else 0.0, len(seeds) - 1, len(pairs))


def with_least_error(pairs: Sequence[Average]) -> list[Average]:
    """The effects of pairs, each with at least the root mean square of their standard errors.

    Without this, skewed advantages of which a few seeds agree would refute "every pair" in a third of cases.
    """
    least = sqrt(fmean(effect.error**2 for effect in pairs))
    return [replace(effect, error=max(effect.error, least)) for effect in pairs]


def _value(advantage: float | None, neither: float) -> float:
    return neither if advantage is None else advantage


def sides(claim: FreshClaim) -> Sides:
    """P-values of a claim: that it is not so, and that its opposite is not so.

    "every", "most" and "some" test that at least K, K/2 + 1 or one of K pairs are ahead, each by its own t. A
    claim about "every" pair cannot be confirmed, so its first p-value is 1.
    """
    if claim.reached:
        return Sides(1.0, min(1.0, len(claim.reached) * min(_rarely(n, claim.seeds) for n in claim.reached)))
    if claim.question == "average" or len(claim.pairs) == 1:
        return mean_effect(claim.pairs, claim.margin).sides(claim.margin)
    effects = [mean_effect([pair], claim.margin) for pair in claim.pairs]
    if claim.question == "every":
        effects = with_least_error(effects)
    each = [effect.sides(claim.margin) for effect in effects]
    number = {"every": len(each), "most": len(each) // 2 + 1, "some": 1}[claim.question]
    found = at_least(each, number)
    return Sides(1.0, found.behind) if claim.question == "every" else found


def _rarely(reached: int, seeds: int) -> float:
    """P-value of "at least half of the runs reach the target": the sign test."""
    from scipy.special import bdtr

    return float(bdtr(reached, seeds, 0.5))


def p_value(claim: FreshClaim) -> float:
    """The p-value that is adjusted for several claims; one-sided where only one side can be found."""
    found = sides(claim)
    return found.behind if _one_sided(claim) else found.two_sided


def _one_sided(claim: FreshClaim) -> bool:
    return bool(claim.reached) or (claim.question == "every" and len(claim.pairs) > 1)


def equal(claim: FreshClaim) -> float:
    """P-value of a difference that matters, by two one-sided tests; 1 where none is defined.

    It is also 1 if neither arm reached any level in more than half of the pairs of runs.
    """
    if claim.matters is None or claim.question != "average":
        return 1.0
    said = [value is not None for pair in claim.pairs for value in pair.values()]
    return 1.0 if 2 * sum(said) < len(said) else mean_effect(claim.pairs).equal(claim.matters)


def answer_family(claims: Sequence[FreshClaim]) -> dict[Hashable, Answer]:
    """Answer the claims of a paper together, by key: one look at `LEVEL`, after Benjamini and Hochberg.

    The p-values of no difference are adjusted among the claims that are neither confirmed nor contradicted.

    Args:
        claims: The claims; those of the same key count once.
    """
    distinct = {claim.key: claim for claim in claims}
    answers: dict[Hashable, Answer] = {
        key: Answer.NOT_RUN for key, claim in distinct.items() if not claim.is_complete
    }
    complete = {key: claim for key, claim in distinct.items() if claim.is_complete}
    adjusted = false_discovery([p_value(claim) for claim in complete.values()])
    open_now = []
    for (key, claim), p in zip(complete.items(), adjusted, strict=True):
        if p <= LEVEL:
            found = sides(claim)
            answers[key] = Answer.CONFIRMED if found.ahead < found.behind else Answer.CONTRADICTED
        elif _one_sided(claim):
            answers[key] = Answer.NOT_REFUTED
        else:
            open_now.append(key)
    same = false_discovery([equal(complete[key]) for key in open_now])
    for key, p in zip(open_now, same, strict=True):
        answers[key] = Answer.NO_DIFFERENCE if p <= LEVEL else Answer.NOT_DECIDED
    return answers


def is_smaller(effect: Average, paper: float | None) -> bool:
    """Whether the paper's median effect lies above the 95 % interval of ours."""
    return paper is not None and bool(effect.error) and paper > effect.interval(0.95)[1]


def seeds_to_decide(effect: Average, margin: float, seeds: int) -> int | None:
    """Number of seeds that would find the measured effect in four of five cases; None means none would.

    Args:
        effect: The measured effect.
        margin: The claim's margin.
        seeds: Number of seeds of the look.
    """
    lead = abs(effect.mean - margin)
    if not effect.error or not lead:
        return None
    # The normal approximation of a two-sided test at 5 %: (1.96 + 0.84)² deviations.
    return max(seeds + 1, ceil((2.8 * effect.error * sqrt(seeds) / lead) ** 2))
