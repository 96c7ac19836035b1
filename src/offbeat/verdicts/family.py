"""Claims judged together, as the claims of a paper are: their p-values are adjusted for all of them."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import log

from offbeat.verdicts.answers import (
    QUANTIFIERS,
    LookAnswers,
    Quantifier,
    equal_over_looks,
    over_looks,
)
from offbeat.verdicts.average import LEAST_SEEDS, PairSample, Sides, column_correlation
from offbeat.verdicts.multiplicity import false_discovery, looks
from offbeat.verdicts.verdict import Verdict, answer_verdict

COST_THAT_MATTERS = log(1.1)
"""Least difference of a cost that matters, as a logarithm: a tenth."""
SHARE_THAT_MATTERS = 0.005
"""Least difference of a share that matters: half a point."""

Answers = Mapping[Hashable, tuple[LookAnswers, ...]]
"""Answers of each look of each distinct claim."""
Verdicts = Mapping[tuple[Hashable, Quantifier], Verdict]
"""The verdict on each question of each distinct claim."""


@dataclass(frozen=True)
class SampledClaim:
    """A claim as the rule sees it: its pairs with their seeds.

    Attributes:
        key: Identity of the claim. Claims that compare the same numbers have the same key and count as one.
        source: Source of the runs, such as the study. The claims of a source share the correlation of
            columns.
        pairs: The pairs, each with all of its seeds.
        planned: The planned seeds, from the first one on.
        complete: Number of seeds, from the first one on, of which all pairs have both runs.
        question: The pairs about which the claim is.
        margin: Least advantage of the claimed arm.
        matters: Least size of a difference that matters. None means that no such size is defined.
    """

    key: Hashable
    source: Hashable
    pairs: Sequence[PairSample]
    planned: range
    complete: int
    question: Quantifier = "average"
    margin: float = 0.0
    matters: float | None = None

    @property
    def looks(self) -> dict[int, float]:
        """The looks for which the claim has all runs, with their levels."""
        levels = looks(len(self.planned))
        return {seeds: level for seeds, level in levels.items() if seeds <= self.complete}

    @property
    def is_judged(self) -> bool:
        """Whether it has enough seeds that can be compared for a verdict."""
        return bool(self.looks) and any(len(pair.advantages) >= LEAST_SEEDS for pair in self.pairs)

    def samples(self, seeds: int) -> list[PairSample]:
        """The claim's pairs with the seeds of a look."""
        used = range(self.planned.start, self.planned.start + seeds)
        return [PairSample(p.block, {s: v for s, v in p.advantages.items() if s in used}) for p in self.pairs]


def complete_seeds(first: int, pairs: Sequence[frozenset[int]]) -> int:
    """Number of seeds from the first one on that all pairs have; 0 without pairs.

    Args:
        first: The first seed.
        pairs: The seeds of each pair of which it has both runs.
    """
    everywhere = frozenset.intersection(*pairs) if pairs else frozenset[int]()
    count = 0
    while first + count in everywhere:
        count += 1
    return count


def answer_claims(claims: Sequence[SampledClaim]) -> Answers:
    """Answers of each look of each distinct claim.

    Args:
        claims: All claims; those of one source share the correlation of its columns at a look.
    """
    by_source: defaultdict[tuple[Hashable, int], dict[Hashable, list[PairSample]]] = defaultdict(dict)
    for claim in claims:
        for seeds in claim.looks:
            by_source[claim.source, seeds][claim.key] = claim.samples(seeds)
    shared = {place: column_correlation(list(samples.values())) for place, samples in by_source.items()}
    distinct = {claim.key: claim for claim in claims}
    return {
        key: tuple(
            LookAnswers(
                by_source[claim.source, seeds][key], seeds, level, claim.margin, claim.matters,
                shared[claim.source, seeds],
            )
            for seeds, level in claim.looks.items()
        )
        for key, claim in distinct.items()
    }  # fmt: skip


def judge_family(family: Sequence[SampledClaim], answered: Answers) -> Verdicts:
    """Judge a family of claims on each question; claims without enough seeds have no verdict.

    Args:
        family: The claims that are judged together.
        answered: The answers of their looks.
    """
    verdicts: dict[tuple[Hashable, Quantifier], Verdict] = {}
    keys = list(dict.fromkeys(claim.key for claim in family if claim.is_judged))
    for question in QUANTIFIERS:
        sides: list[Sides] = [over_looks(answered[key], question) for key in keys]
        differ = false_discovery([side.two_sided for side in sides])
        equal = false_discovery([equal_over_looks(answered[key], question) for key in keys])
        for key, side, different, same in zip(keys, sides, differ, equal, strict=True):
            verdicts[key, question] = answer_verdict(side, different, same)
    return verdicts
