"""The numbers of the page of findings: the papers' claims together, their effects and their power."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

from offbeat_papers.claim_pairs import JudgedPair
from offbeat_papers.claims import distinct_claims
from offbeat_papers.experiments import JudgedExperiment
from offbeat_papers.judge import JudgedClaim
from offbeat_papers.study import COSTS

Effects = dict[str, list[tuple[float, float]]]
"""By paper the paper's effect and ours of each pair: the logarithm of a ratio, or a difference of shares."""


@dataclass(frozen=True)
class Findings:
    """The rows' findings on the papers together.

    Attributes:
        judged: The experiments.
    """

    judged: Sequence[JudgedExperiment]

    @cached_property
    def claims(self) -> list[JudgedClaim]:
        """The distinct claims that have enough runs on real data."""
        return [claim for _, claim in distinct_claims(self.judged)]

    @property
    def costs(self) -> list[JudgedClaim]:
        """The claims of time and other costs, whose effects are ratios; those of gains are left out."""
        return [claim for claim in self.claims if claim.by in COSTS and not claim.claim.over]

    @property
    def accuracies(self) -> list[JudgedClaim]:
        """The claims of accuracy and other shares, whose effects are differences."""
        return [
            claim for claim in self.claims
            if claim.by not in COSTS and claim.measured.matters is not None and not claim.claim.over
        ]  # fmt: skip

    def pairs(self, claims: Sequence[JudgedClaim]) -> Effects:
        """The effects of each pair of arms of some claims, of which the paper gives numbers."""
        return {name: [*own.values()] for name, own in self._pairs(claims).items()}

    def _pairs(self, claims: Sequence[JudgedClaim]) -> dict[str, dict[object, tuple[float, float]]]:
        found: dict[str, dict[object, tuple[float, float]]] = {}
        for claim in claims:
            paper = claim.measured.rows.study.name.partition("/")[0]
            for pair in claim.pairs:
                ours = pair.mean(claim.seeds)
                if pair.paper is not None and isfinite(pair.paper) and ours is not None:
                    found.setdefault(paper, {}).setdefault(_key(claim, pair), (pair.paper, ours))
        return found

    @property
    def never(self) -> int:
        """Number of pairs of costs of which one never reaches the target in the paper: no ratio."""
        return len({
            _key(claim, pair) for claim in self.costs for pair in claim.pairs
            if pair.paper is not None and not isfinite(pair.paper)
        })  # fmt: skip

    @property
    def looked_at(self) -> list[JudgedClaim]:
        """The claims on a cost that had a look."""
        return [claim for claim in self.costs if claim.last is not None]

    def detectable(self) -> list[float]:
        """The effect that claims of a cost would have shown in four of five cases, in logarithms.

        A claim without an effect is left out: no run that it compares has reached the target.
        """
        sizes = [claim.last.detectable(claim.question) for claim in self.costs if claim.last is not None]
        return sorted(size for size in sizes if size is not None and size > 0)


def _key(claim: JudgedClaim, pair: JudgedPair) -> tuple[object, ...]:
    """A pair of arms in either order: two claims that say the opposite of each other compare one pair."""
    return claim.measured.rows.study.name, claim.by, frozenset((pair.better, pair.than))
