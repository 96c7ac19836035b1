"""The pairs of arms that a claim compares: the advantage in each seed, here and by the paper's numbers."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isnan, log, log1p
from statistics import fmean

from offbeat.core.metric_names import NamedMetric
from offbeat.verdicts.answers import Quantifier
from offbeat.verdicts.average import LEAST_SEEDS, PairSample
from offbeat.verdicts.cost import Cost, log_ratio
from offbeat.verdicts.family import (
    COST_THAT_MATTERS,
    SHARE_THAT_MATTERS,
    SampledClaim,
    complete_seeds,
)
from offbeat_papers.arm_rows import Arm, ItemRows, bases_of, claim_arms
from offbeat_papers.levels import fair_advantage, level_advantage
from offbeat_papers.study import COSTS, VALUES, Item, Number, PaperClaim


@dataclass(frozen=True)
class JudgedPair:
    """A pair of arms of a claim.

    Attributes:
        better: The arm that is said to be ahead.
        than: The other arm.
        seeds: The seeds that both arms have.
        advantages: The advantage in each seed whose two runs are of the same kind of processor; for a cost,
            the logarithm of the ratio, averaged over levels if the runs have them. None means that neither
            arm reached the target, or any level.
        paper: The advantage by the paper's numbers, in the same unit; infinite if the other arm never reached
            the target. None means that the paper has no such numbers.
        kinds: The kind of processor of the runs that were compared, by seed.
        whole: Of a cost whose runs have levels, the advantage with all that each run spent. `advantages` are
            within what both runs spent, so that a longer run is not behind for its length.
        at_target: The same at the target alone.
    """

    better: Arm
    than: Arm
    seeds: frozenset[int]
    advantages: Mapping[int, float | None]
    paper: float | None
    kinds: Mapping[int, str] = field(default_factory=dict)
    whole: Mapping[int, float | None] = field(default_factory=dict)
    at_target: Mapping[int, float | None] = field(default_factory=dict)

    @property
    def columns(self) -> frozenset[str]:
        """The columns of its arms."""
        return frozenset((self.better[1], self.than[1]))

    def mean(self, seeds: range) -> float | None:
        """The mean advantage over some seeds; None where none of them has one."""
        found = [each for seed, each in self.advantages.items() if seed in seeds]
        if len(found) < LEAST_SEEDS or all(each is None for each in found):
            return None
        return fmean(each or 0.0 for each in found)


@dataclass(frozen=True)
class MeasuredClaim:
    """A claim with its measurements.

    Attributes:
        rows: The rows of its item.
        claim: The claim.
        by: What is compared.
        pairs: Its pairs of arms that run at the size.
        named: Number of pairs that the claim names, at any size.
    """

    rows: ItemRows
    claim: PaperClaim
    by: str
    pairs: tuple[JudgedPair, ...]
    named: int

    @property
    def question(self) -> Quantifier:
        """The pairs about which the claim is; with one pair all questions are one."""
        return self.claim.quantifier if len(self.pairs) > 1 else "average"

    @property
    def margin(self) -> float:
        """Least lead of the claimed arm, in the unit of advantages."""
        return log1p(self.claim.margin) if self.by in COSTS else self.claim.margin

    @property
    def matters(self) -> float | None:
        """Least difference that matters: a tenth of a cost, half a point of a share."""
        if self.by in COSTS:
            return COST_THAT_MATTERS
        metric = NamedMetric.of(self.rows.metric if self.by in VALUES else self.by)
        return SHARE_THAT_MATTERS if metric.is_share and self.by != "change" else None

    @cached_property
    def key(self) -> Hashable:
        """Key of the compared numbers: the rule asks each question once of claims with the same key."""
        targets = self.rows.targets if self.by in COSTS else {}
        pairs = frozenset(
            (p.better, p.than, targets.get(p.better[1]), targets.get(p.than[1])) for p in self.pairs
        )
        metric = self.rows.metric if self.by in (*COSTS, *VALUES) else None
        compared = self.by, metric, tuple(self.claim.over)
        return self.rows.study.name, self.rows.size, compared, self.claim.margin, pairs

    @property
    def asked(self) -> Hashable:
        """What is compared, and the question: where these are equal, a claim is said again."""
        return self.key, self.question

    @cached_property
    def sampled(self) -> SampledClaim:
        """The claim with its pairs in blocks: of a column, or of several that pairs join."""
        block = _blocks([pair.columns for pair in self.pairs])
        return SampledClaim(
            self.key, self.rows.study.name,
            [PairSample(block[pair.better[1]], pair.advantages) for pair in self.pairs], self.rows.seeds,
            complete_seeds(self.rows.seeds.start, [pair.seeds for pair in self.pairs]),
            self.question, self.margin, self.matters,
        )  # fmt: skip


def _blocks(pairs: Sequence[frozenset[str]]) -> dict[str, str]:
    """By column the one that stands for all columns that pairs join with it."""
    block = {column: column for pair in pairs for column in pair}
    for pair in pairs:
        joined = {block[column] for column in pair}
        block = {column: min(joined) if own in joined else own for column, own in block.items()}
    return block


def measure_claim(rows: ItemRows, claim: PaperClaim) -> MeasuredClaim:
    """Pair the runs of a claim's arms."""
    by = claim.by or rows.item.shows
    named = claim_arms(rows.study, rows.name, claim)
    arms = [pair for pair in named if all(arm in rows.runs for arm in (*pair, *bases_of(claim, *pair)))]
    pairs = tuple(_measure_on_each_kind(rows, claim, by, *pair) for pair in arms)
    return MeasuredClaim(rows, claim, by, pairs, len(named))


def _measure_on_each_kind(rows: ItemRows, claim: PaperClaim, by: str, better: Arm, than: Arm) -> JudgedPair:
    """The pair, with the advantages of seeds in which all its runs were made on one kind of processor.

    Other kinds round differently. If a seed was made on several kinds, the first one counts.
    """
    found: dict[int, tuple[JudgedPair, str]] = {}
    for kind in rows.kinds:
        pair = _measure_gains(rows.on(kind), claim, by, better, than)
        found = dict.fromkeys(pair.advantages, (pair, kind)) | found
    in_order = {seed: found[seed] for seed in sorted(found)}
    return replace(
        _measure_gains(rows, claim, by, better, than),
        advantages={seed: pair.advantages[seed] for seed, (pair, _) in in_order.items()},
        kinds={seed: kind for seed, (_, kind) in found.items()},
        whole={seed: pair.whole[seed] for seed, (pair, _) in in_order.items() if pair.whole},
        at_target={seed: pair.at_target[seed] for seed, (pair, _) in in_order.items() if pair.whole},
    )


def _measure_gains(rows: ItemRows, claim: PaperClaim, by: str, better: Arm, than: Arm) -> JudgedPair:
    """The pair; of a claim of gains, the advantage of one arm over its base less the other's over its own.

    Where one of the two gains says nothing it counts 0, as it does by itself.
    """
    if not claim.over:
        return _measure_pair(rows, by, better, than)
    ahead, behind = (
        _measure_pair(rows, by, arm, base)
        for arm, base in zip((better, than), bases_of(claim, better, than), strict=True)
    )
    paper = None if ahead.paper is None or behind.paper is None else ahead.paper - behind.paper
    return JudgedPair(
        better, than, ahead.seeds & behind.seeds,
        _gains(ahead.advantages, behind.advantages),
        None if paper is None or isnan(paper) else paper,
        whole=_gains(ahead.whole, behind.whole),
        at_target=_gains(ahead.at_target, behind.at_target),
    )  # fmt: skip


def _gains(own: Mapping[int, float | None], other: Mapping[int, float | None]) -> dict[int, float | None]:
    return {
        seed: None if own[seed] is None and other[seed] is None else (own[seed] or 0.0) - (other[seed] or 0.0)
        for seed in own
        if seed in other
    }


def _measure_pair(rows: ItemRows, by: str, better: Arm, than: Arm) -> JudgedPair:
    sign = _sign(rows, by)
    paper = _paper_advantage(rows.item, by, better, than, sign)
    if by in COSTS and rows.levels:
        own, other = rows.climbs(better, by), rows.climbs(than, by)
        both = {seed: (own[seed], other[seed]) for seed in own if seed in other}
        return JudgedPair(
            better, than, frozenset(both),
            {seed: fair_advantage(*climbs) for seed, climbs in both.items()},
            paper,
            whole={seed: level_advantage(*climbs) for seed, climbs in both.items()},
            at_target={seed: log_ratio(a.costs[-1], b.costs[-1]) for seed, (a, b) in both.items()},
        )  # fmt: skip
    ahead, behind = rows.amounts(better, by), rows.amounts(than, by)
    advantages = {seed: _advantage(ahead[seed], behind[seed], sign) for seed in ahead if seed in behind}
    return JudgedPair(better, than, frozenset(advantages), advantages, paper)


def _sign(rows: ItemRows, by: str) -> float:
    """1 where more of it is better."""
    if by == "change":
        return -1.0
    measure = rows.measure if by in VALUES else NamedMetric.of(by, {})
    return 1.0 if measure.higher_is_better else -1.0


def _advantage(ahead: Cost | float, behind: Cost | float, sign: float) -> float | None:
    if isinstance(ahead, Cost) and isinstance(behind, Cost):
        return log_ratio(ahead, behind)
    assert isinstance(ahead, float | int)
    assert isinstance(behind, float | int)
    return sign * (ahead - behind)


def _paper_advantage(item: Item, by: str, better: Arm, than: Arm, sign: float) -> float | None:
    """The advantage by the paper's numbers; None where they are of something else, or both are "never"."""
    missing = object()
    numbers = [item.numbers.get(column, {}).get(label, missing) for label, column in (better, than)]
    if by != item.shows or missing in numbers or numbers == [None, None]:
        return None
    ahead, behind = (number_value(number) for number in numbers)  # type: ignore[arg-type]
    if ahead is None or behind is None:
        worse = -1.0 if ahead is None else 1.0
        return worse * float("inf")
    return log(behind / ahead) if by in COSTS else sign * (ahead - behind)


def number_value(number: Number) -> float | None:
    """A paper's number without its deviation."""
    return number[0] if isinstance(number, tuple) else number
