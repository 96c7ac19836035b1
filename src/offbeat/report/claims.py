"""What a paper claims of the labels, and what the runs show: ordering, size of the gap, seeds.

A claim is compared by a number per run, taken over the last fifth of its time: the mean of a metric, or the
mean absolute change of the first metric shown (the accuracy, if there is one) from one evaluation to the
next. Seeds are paired. A pair is held or not held by Student's t at 5 %, two-sided, as the rule of studies
(docs/studies.md) has it for one pair and one look; with fewer than three seeds it is undecided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter

from offbeat.core.metric_names import NamedMetric, finite, first_shown
from offbeat.core.validation import checked_dataclass
from offbeat.report.records import metric_of, read_evaluations, recorded_metrics
from offbeat.report.statistics import student_t
from offbeat.report.units import mean_text
from offbeat.runs.record import RunRecord

CHANGE = "change"
LEAST_SEEDS = 3
"""Fewest seeds with which a claim is held or not held."""
LAST = 0.2  # of a run's time: what a claim is compared by


@checked_dataclass
class Claim:
    """Something a paper says of several labels: that `better` is better than each of `than`.

    By a metric; or by how much the first one shown goes up and down (`change`), of which less is better.
    """

    says: str
    better: str
    than: Annotated[list[str], Field(min_length=1)]
    by: str = "accuracy"


@dataclass(frozen=True, slots=True)
class Finding:
    """One pair of a claim: what `better` is ahead of `than` by, as mean and deviation over `seeds`.

    Positive is what the claim says; `agreeing` seeds have it so. Accuracies are shares. `measure` is what
    they are compared by; of its change, less is better.
    """

    says: str
    better: str
    than: str
    by: str
    measure: NamedMetric
    mean: float
    std: float
    agreeing: int
    seeds: int


def claims_of(recipe: Mapping[str, Any] | None) -> list[Claim]:
    """The claims in a recorded recipe."""
    return TypeAdapter(list[Claim]).validate_python((recipe or {}).get("claims", []))


def findings(groups: Mapping[str, Sequence[RunRecord]], claims: Sequence[Claim]) -> list[Finding]:
    """Each pair of labels that a claim names and that there are runs of with common seeds."""
    found = []
    for claim in claims:
        measure = _measure(groups, claim.by)
        ahead = _levels(groups.get(claim.better, []), claim.by, measure)
        for other in claim.than:
            behind = _levels(groups.get(other, []), claim.by, measure)
            sign = 1.0 if measure.higher_is_better else -1.0
            gaps = np.array([sign * (ahead[seed] - behind[seed]) for seed in ahead if seed in behind])
            if len(gaps):
                std = float(gaps.std(ddof=1)) if len(gaps) > 1 else 0.0
                mean, agreeing = float(gaps.mean()), int((gaps > 0).sum())
                pair = claim.says, claim.better, other, claim.by, measure
                found.append(Finding(*pair, mean, std, agreeing, len(gaps)))
    return found


def cells(finding: Finding) -> tuple[str, str, str, str]:
    """The pair, the gap, the seeds that agree, and whether it is held, not held or undecided."""
    sign = ">" if finding.measure.higher_is_better else "<"
    scale, unit = finding.measure.scale, " points" if finding.measure.is_share else ""
    pair = f"{finding.better} {sign} {finding.than} ({finding.by})"
    std = scale * finding.std if finding.seeds > 1 else None
    gap = f"{mean_text(scale * finding.mean, std, sign=True)}{unit}"
    return pair, gap, f"{finding.agreeing} of {finding.seeds}", _verdict(finding)


def _verdict(finding: Finding) -> str:
    """What Student's interval of the gap says; runs that do not vary say nothing."""
    if finding.seeds < LEAST_SEEDS or not finding.std:
        return "undecided"
    half = student_t(finding.seeds - 1) * finding.std / sqrt(finding.seeds)
    return "held" if finding.mean > half else "not held" if finding.mean < -half else "undecided"


def level(run: RunRecord, metric: str, change: bool = False) -> float | None:
    """What a run is compared by: the mean of a metric, or of its change; None without evaluations."""
    rows = [row for row in run.metrics if row["t"] >= (1 - LAST) * run.duration]
    known = [value for row in rows if (value := finite(row.get(metric))) is not None]
    if change:
        known = [abs(b - a) for a, b in pairwise(known)]
    return float(np.mean(known)) if known else None


def _measure(groups: Mapping[str, Sequence[RunRecord]], by: str) -> NamedMetric:
    """What a claim compares by."""
    if by != CHANGE:
        return metric_of([run for runs in groups.values() for run in runs], by)
    return NamedMetric(first_shown(recorded_metrics(read_evaluations(groups))), higher_is_better=False)


def _levels(runs: Sequence[RunRecord], by: str, measure: NamedMetric) -> dict[int, float]:
    """The level of each seed that has one."""
    found = {run.seed: level(run, measure.name, by == CHANGE) for run in runs}
    return {seed: number for seed, number in found.items() if number is not None}
