"""Answers of a claim's pairs to each question that a claim can ask: average, every, most, some."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from offbeat.verdicts.average import NOTHING, Average, PairSample, Sides, average
from offbeat.verdicts.multiplicity import spent
from offbeat.verdicts.pair_counts import PairsAhead, at_least, each_pair, pairs_ahead

Quantifier = Literal["average", "every", "most", "some"]
QUANTIFIERS: tuple[Quantifier, ...] = ("average", "every", "most", "some")
"""The pairs about which a claim is: their mean, each, more than half, at least one."""


@dataclass(frozen=True)
class LookAnswers:
    """Answers of the seeds up to a look.

    Attributes:
        pairs: The pairs, with these seeds.
        seeds: Number of seeds of the look.
        level: Level that is spent at the look.
        margin: Least advantage of the claimed arm.
        matters: Least size of a difference that matters. None means that no such size is defined.
        correlation: Correlation of the study's columns.
    """

    pairs: Sequence[PairSample]
    seeds: int
    level: float
    margin: float = 0.0
    matters: float | None = None
    correlation: float = 0.0

    @cached_property
    def effect(self) -> Average | None:
        """The mean effect. A seed in which neither arm reached the target counts as 0."""
        return average(self.pairs, self.correlation)

    @cached_property
    def tested(self) -> Average | None:
        """The mean to compare with the margin; a seed without a reached target counts as the margin."""
        return average(self.pairs, self.correlation, self.margin) if self.margin else self.effect

    @cached_property
    def each(self) -> list[Average | None]:
        """`tested` of each pair by itself."""
        return each_pair(self.pairs, self.margin)

    @cached_property
    def ahead(self) -> PairsAhead | None:
        """How many pairs are ahead by more than the margin."""
        return pairs_ahead(self.pairs, self.margin, self.tested)

    def sides(self, question: Quantifier) -> Sides:
        """P-values at this look: that the question's claim is not so, and that its opposite is not so."""
        if question == "average":
            return NOTHING if self.tested is None else self.tested.sides(self.margin)
        if question == "most":
            return NOTHING if self.ahead is None or self.ahead.of < len(self.pairs) else self.ahead.most
        each = [NOTHING if pair is None else pair.sides(self.margin) for pair in self.each]
        return at_least(each, len(each) if question == "every" else 1)

    def equal(self, question: Quantifier) -> float:
        """P-value of a difference that matters: on average, or for another question in any of the pairs.

        The p-value is 1 if no such size is defined. It is also 1 if neither arm reached the target in more
        than half of the pairs of runs.
        """
        said = [value is not None for pair in self.pairs for value in pair.advantages.values()]
        if self.matters is None or 2 * sum(said) < len(said):
            return 1.0
        alone = [self.effect] if question == "average" else each_pair(self.pairs, 0.0)
        return max(1.0 if one is None else one.equal(self.matters) for one in alone)

    def detectable(self, question: Quantifier) -> float | None:
        """The effect that this look would find in four of five cases, at the look's level.

        For "average" and "most" it is the mean effect, for "every" the largest effect of a pair, and for
        "some" the smallest. None means unknown.
        """
        if question in ("average", "most"):
            effect = None if self.tested is None else self.tested.detectable(self.level)
        else:
            level = self.level if question == "every" else self.level / len(self.pairs)
            each = [None if pair is None else pair.detectable(level) for pair in self.each]
            known = [size for size in each if size is not None]
            whole = len(known) == len(each) if question == "every" else bool(known)
            effect = (max(known) if question == "every" else min(known)) if whole else None
        return None if effect is None else self.margin + effect


def over_looks(answers: Sequence[LookAnswers], question: Quantifier) -> Sides:
    """P-values of a question over all looks, to be compared with the level of a claim."""
    found = [look.sides(question).times(spent(look.level)) for look in answers]
    return Sides(min(side.ahead for side in found), min(side.behind for side in found))


def equal_over_looks(answers: Sequence[LookAnswers], question: Quantifier) -> float:
    """P-value of a difference that matters, over all looks."""
    return min(1.0, *(look.equal(question) * spent(look.level) for look in answers))
