"""A paper's claims about the labels, and the runs' evidence: ordering, size of the gap, seeds, verdict.

A claim is compared by a number per run, taken over the last fifth of its time: the mean of a metric, or the
mean absolute change of the first metric shown (the accuracy, if there is one) from one evaluation to the
next. Seeds are paired. The claims of a recipe are judged together by the rule of studies (docs/studies.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter

from offbeat.core.metric_names import NamedMetric, finite, first_shown
from offbeat.core.validation import checked_dataclass
from offbeat.report.records import metric_of, read_evaluations, recorded_metrics
from offbeat.runs.damage import reading
from offbeat.runs.record import RunRecord
from offbeat.runs.schema import DATABASE
from offbeat.units import mean_text
from offbeat.verdicts.average import PairSample
from offbeat.verdicts.family import (
    SHARE_THAT_MATTERS,
    SampledClaim,
    answer_claims,
    complete_seeds,
    judge_family,
)
from offbeat.verdicts.multiplicity import looks
from offbeat.verdicts.verdict import Verdict

CHANGE = "change"
# A claim compares the last part of the runs, this share of their time.
LAST = 0.2
# A comparison has at most this number of seeds.
_MOST_SEEDS = 1000


@checked_dataclass
class Claim:
    """A claim of a paper about several labels: `better` is better than `than`, on average over them.

    By a metric; or by how much the first one shown goes up and down (`change`), of which less is better.
    """

    says: str
    better: str
    than: Annotated[list[str], Field(min_length=1)]
    by: str = "accuracy"


@dataclass(frozen=True, slots=True)
class PairGap:
    """The lead of `better` over `than`, seed by seed; a positive lead supports the claim.

    Attributes:
        better: The label that the claim puts ahead.
        than: The other label.
        gaps: The gap by seed, for the common seeds; accuracies are shares.
        apart: The common seeds whose runs are on different kinds of processor, and are not compared.
    """

    better: str
    than: str
    gaps: Mapping[int, float]
    apart: frozenset[int] = frozenset()

    @property
    def seeds(self) -> frozenset[int]:
        """The seeds that both have."""
        return self.apart | frozenset(self.gaps)

    @property
    def mean(self) -> float | None:
        """The mean over seeds; None where no seed can be compared."""
        return fmean(self.gaps.values()) if self.gaps else None

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds; None for a single seed."""
        return float(np.std([*self.gaps.values()], ddof=1)) if len(self.gaps) > 1 else None

    @property
    def agreeing(self) -> int:
        """Number of seeds in which it is as the claim has it."""
        return sum(gap > 0 for gap in self.gaps.values())


@dataclass(frozen=True, slots=True)
class Finding:
    """The runs' evidence on a claim.

    Attributes:
        claim: The claim.
        measure: Quantity by which the labels are compared. For its change, less is better.
        pairs: The pairs of labels that have runs with common seeds.
        first_look: Number of seeds with which the claim is judged first.
        seeds: Number of seeds on which the verdict rests; 0 before the first look.
        verdict: The verdict on the mean over the pairs; undecided before the first look.
    """

    claim: Claim
    measure: NamedMetric
    pairs: tuple[PairGap, ...]
    first_look: int
    seeds: int
    verdict: Verdict


def claims_of(recipe: Mapping[str, Any] | None) -> list[Claim]:
    """The claims in a recorded recipe."""
    return TypeAdapter(list[Claim]).validate_python((recipe or {}).get("claims", []))


def claims_of_run(record: RunRecord) -> list[Claim]:
    """The claims in a run's recipe. Raises `DamageError` where they are none."""
    with reading(record.path / DATABASE):
        return claims_of(record.recipe)


def findings(groups: Mapping[str, Sequence[RunRecord]], claims: Sequence[Claim]) -> list[Finding]:
    """Judge the claims of a recipe together, as a study judges those of its file.

    The seeds that the runs' recipe plans say when claims are judged, as those of a study's recipe do. A claim
    without a pair of labels that have common seeds is left out.

    Args:
        groups: The runs by label.
        claims: The claims.
    """
    measured = [(claim, _measure(groups, claim.by)) for claim in claims]
    paired = [(claim, measure, _pairs(groups, claim, measure)) for claim, measure in measured]
    paired_claims = [(claim, measure, pairs) for claim, measure, pairs in paired if pairs]
    planned = planned_seeds(groups)
    sampled = [_sampled(claim, measure, pairs, planned) for claim, measure, pairs in paired_claims]
    answered = answer_claims(sampled)
    verdicts = judge_family(sampled, answered)
    return [
        Finding(
            claim, measure, pairs, min(looks(len(planned))), max(own.looks, default=0),
            verdicts.get((own.key, own.question), Verdict.UNDECIDED),
        )
        for (claim, measure, pairs), own in zip(paired_claims, sampled, strict=True)
    ]  # fmt: skip


def planned_seeds(groups: Mapping[str, Sequence[RunRecord]]) -> range:
    """The seeds that the recipe of the first run plans, from the least seed of all runs on."""
    runs = [run for own in groups.values() for run in own]
    first = min((run.seed for run in runs), default=0)
    recipe = runs[0].recipe if runs else None
    seeds = (recipe or {}).get("seeds")
    planned = seeds if isinstance(seeds, int) and 0 < seeds <= _MOST_SEEDS else 0
    return range(first, first + planned)


def _pairs(
    groups: Mapping[str, Sequence[RunRecord]], claim: Claim, measure: NamedMetric
) -> tuple[PairGap, ...]:
    """The pairs of a claim that have common seeds, whose runs are of the same kind of processor."""
    ahead = _levels(groups.get(claim.better, []), claim.by, measure)
    own_runs = {run.seed: run for run in groups.get(claim.better, [])}
    sign = 1.0 if measure.higher_is_better else -1.0
    gaps_found = []
    for other in dict.fromkeys(claim.than):
        behind = _levels(groups.get(other, []), claim.by, measure)
        other_runs = {run.seed: run for run in groups.get(other, [])}
        common = [seed for seed in ahead if seed in behind]
        gaps = {
            seed: sign * (ahead[seed] - behind[seed])
            for seed in common
            if are_comparable(own_runs[seed], other_runs[seed])
        }
        if common:
            gaps_found.append(PairGap(claim.better, other, gaps, frozenset(common) - frozenset(gaps)))
    return tuple(gaps_found)


def are_comparable(run: RunRecord, other: RunRecord) -> bool:
    """Whether two runs are of one kind of processor."""
    return run.processors == other.processors


def _sampled(claim: Claim, measure: NamedMetric, pairs: Sequence[PairGap], planned: range) -> SampledClaim:
    """A claim as the rule sees it: one block, as runs of a seed share their data and initial model."""
    matters = SHARE_THAT_MATTERS if measure.is_share and claim.by != CHANGE else None
    return SampledClaim(
        (claim.by, measure.name, claim.better, frozenset(pair.than for pair in pairs)), "",
        [PairSample("", pair.gaps) for pair in pairs], planned,
        complete_seeds(planned.start, [pair.seeds for pair in pairs]), matters=matters,
    )  # fmt: skip


def finding_rows(finding: Finding) -> list[tuple[str, str, str, str, str]]:
    """A row for each pair: the claim, the pair, the gap, the seeds that agree, and the verdict.

    A claim of several pairs has its verdict in a row of its own, with the mean over them.
    """
    sign = ">" if finding.measure.higher_is_better else "<"
    by = finding.claim.by
    rows = [
        (
            "", f"{pair.better} {sign} {pair.than} ({by})", _gap_text(finding, pair.mean, pair.std),
            f"{pair.agreeing} of {len(pair.gaps)}{_apart_text(pair)}", "",
        )
        for pair in finding.pairs
    ]  # fmt: skip
    says, verdict = finding.claim.says, verdict_text(finding)
    if len(rows) == 1:
        return [(says, *rows[0][1:4], verdict)]
    means = [pair.mean for pair in finding.pairs if pair.mean is not None]
    mean = _gap_text(finding, fmean(means) if means else None, None)
    return [(says, f"on average ({by})", mean, "", verdict), *rows]


def _apart_text(pair: PairGap) -> str:
    return f" ({len(pair.apart)} of other processors)" if pair.apart else ""


def verdict_text(finding: Finding) -> str:
    """The verdict, and how many seeds it rests on or waits for, where those are not all that there are."""
    if not finding.seeds:
        return f"{finding.verdict}: judged from {finding.first_look} seeds on"
    fewer = finding.seeds < max(len(pair.seeds) for pair in finding.pairs)
    return f"{finding.verdict} by {finding.seeds} seeds" if fewer else finding.verdict.value


def _gap_text(finding: Finding, mean: float | None, std: float | None) -> str:
    if mean is None:
        return "–"
    scale, unit = finding.measure.scale, " points" if finding.measure.is_share else ""
    spread = None if std is None else scale * std
    return f"{mean_text(scale * mean, spread, sign=True)}{unit}"


def level(run: RunRecord, metric: str, change: bool = False) -> float | None:
    """The level that a claim compares: the mean of a metric, or of its change; None without evaluations."""
    rows = [row for row in run.metrics if row["t"] >= (1 - LAST) * run.duration]
    known = [value for row in rows if (value := finite(row.get(metric))) is not None]
    if change:
        known = [abs(b - a) for a, b in pairwise(known)]
    return float(np.mean(known)) if known else None


def _measure(groups: Mapping[str, Sequence[RunRecord]], by: str) -> NamedMetric:
    """The measure by which a claim compares."""
    if by != CHANGE:
        return metric_of([run for runs in groups.values() for run in runs], by)
    return NamedMetric(first_shown(recorded_metrics(read_evaluations(groups))), higher_is_better=False)


def _levels(runs: Sequence[RunRecord], by: str, measure: NamedMetric) -> dict[int, float]:
    """The level of each seed that has one; of a run that has not finished it would be of another time."""
    finished = [run for run in runs if run.status == "finished"]
    found = {run.seed: level(run, measure.name, by == CHANGE) for run in finished}
    return {seed: number for seed, number in found.items() if number is not None}
