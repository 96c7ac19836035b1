"""What a paper claims of the labels, and what the runs show: ordering, size of the gap, seeds.

A claim is compared by a number per run, taken over the last fifth of its time: the mean accuracy, the mean
loss, or the mean absolute change of the accuracy from one evaluation to the next. Seeds are paired. Nothing
is said to hold that the runs do not show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass as checked

from offbeat.core.validation import STRICT
from offbeat.runs.record import RunRecord

By = Literal["accuracy", "loss", "change"]
LAST = 0.2  # of a run's time: what a claim is compared by


@checked(frozen=True, config=STRICT)
class Claim:
    """Something a paper says of several labels: that `better` is above each of `than`.

    By the `accuracy`; or below each, by the `loss` or by how much the accuracy goes up and down (`change`).
    """

    says: str
    better: str
    than: Annotated[list[str], Field(min_length=1)]
    by: By = "accuracy"


@dataclass(frozen=True, slots=True)
class Finding:
    """One pair of a claim: what `better` is ahead of `than` by, as mean and deviation over `seeds`.

    Positive is what the claim says; `agreeing` seeds have it so. Accuracies are shares.
    """

    says: str
    better: str
    than: str
    by: By
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
        ahead = _levels(groups.get(claim.better, []), claim.by)
        for other in claim.than:
            behind = _levels(groups.get(other, []), claim.by)
            sign = 1.0 if claim.by == "accuracy" else -1.0
            gaps = np.array([sign * (ahead[seed] - behind[seed]) for seed in ahead if seed in behind])
            if len(gaps):
                std = float(gaps.std(ddof=1)) if len(gaps) > 1 else 0.0
                mean, agreeing = float(gaps.mean()), int((gaps > 0).sum())
                pair = claim.says, claim.better, other, claim.by
                found.append(Finding(*pair, mean, std, agreeing, len(gaps)))
    return found


def cells(finding: Finding) -> tuple[str, str, str, str]:
    """The pair, the gap, the seeds that agree, and whether it holds: on average, in every seed, or not."""
    sign = ">" if finding.by == "accuracy" else "<"
    scale, unit = (1.0, "") if finding.by == "loss" else (100.0, " points")
    pair = f"{finding.better} {sign} {finding.than} ({finding.by})"
    gap = f"{scale * finding.mean:+.2f} ± {scale * finding.std:.2f}{unit}"
    verdict = "no" if finding.mean <= 0 else "yes" if finding.agreeing == finding.seeds else "on average"
    return pair, gap, f"{finding.agreeing} of {finding.seeds}", verdict


def level(run: RunRecord, by: By) -> float | None:
    """The number that a run is compared by; None without evaluations."""
    rows = [row for row in run.metrics if row["t"] >= (1 - LAST) * run.duration]
    values = [row["loss" if by == "loss" else "accuracy"] for row in rows]
    known = [float(v) for v in values if v is not None]
    if by == "change":
        known = [abs(b - a) for a, b in pairwise(known)]
    return float(np.mean(known)) if known else None


def _levels(runs: Sequence[RunRecord], by: By) -> dict[int, float]:
    """The level of each seed that has one."""
    return {run.seed: found for run in runs if (found := level(run, by)) is not None}
