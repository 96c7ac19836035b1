"""One sentence on a comparison: who is first, by how much, and whether that is beyond the noise.

All pairs of labels are judged together, by the rule of studies (docs/studies.md): so the first and the next
may be chosen with the results in view.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import exp
from statistics import fmean
from typing import TypeVar

from offbeat.core.metric_names import NamedMetric
from offbeat.report.claims import are_comparable, planned_seeds
from offbeat.report.statistics import BySeed
from offbeat.report.units import duration_text
from offbeat.runs.record import RunRecord
from offbeat.verdicts.average import PairSample
from offbeat.verdicts.cost import Cost, log_ratio
from offbeat.verdicts.family import (
    COST_THAT_MATTERS,
    SHARE_THAT_MATTERS,
    SampledClaim,
    answer_claims,
    complete_seeds,
    judge_family,
)
from offbeat.verdicts.multiplicity import looks
from offbeat.verdicts.verdict import Verdict

T = TypeVar("T")
Groups = Mapping[str, Sequence[RunRecord]]
Advantages = Mapping[tuple[str, str], Mapping[int, float | None]]
"""Of each ordered pair of labels by how much the first is ahead, by seed; None where neither got there."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The labels from the first to the last, and what the runs say of the first.

    Attributes:
        labels: The labels, two or more, by their mean advantage over the others.
        means: Mean advantage of the first over each other label.
        verdicts: Whether the first is ahead of each other label; absent before the first look at the seeds.
        seeds: Number of the first seeds that the verdicts rest on; before the first look, of those that all
            labels have.
        first_look: Number of seeds with which a comparison is judged first.
    """

    labels: tuple[str, ...]
    means: Mapping[str, float]
    verdicts: Mapping[str, Verdict]
    seeds: int
    first_look: int


def rank_times(groups: Groups, costs: Mapping[str, Mapping[int, Cost]]) -> Ranking | None:
    """Rank labels by their virtual time to a target; None where not all can be compared with each other.

    Args:
        groups: The runs by label; those that have not finished are left out.
        costs: The time of each label by seed; where the target was not reached, that of the last evaluation.
    """
    return _rank(_advantages(groups, costs, log_ratio), planned_seeds(groups), COST_THAT_MATTERS)


def rank_values(groups: Groups, values: Mapping[str, BySeed], measure: NamedMetric) -> Ranking | None:
    """Rank labels by a metric; None where not all can be compared with each other.

    Args:
        groups: The runs by label; those that have not finished are left out.
        values: The value of each label by seed.
        measure: The metric.
    """
    sign = 1.0 if measure.higher_is_better else -1.0
    known = {
        label: {seed: value for seed, value in own.items() if value is not None}
        for label, own in values.items()
    }
    advantages = _advantages(groups, known, lambda ours, theirs: sign * (ours - theirs))
    return _rank(advantages, planned_seeds(groups), SHARE_THAT_MATTERS if measure.is_share else None)


def time_headline(ranking: Ranking, goal: str, seconds: float | None) -> str:
    """Say which label was first to a target.

    Args:
        ranking: The labels by their times.
        goal: The target in words.
        seconds: Mean time of the first. None means that fewer than half of its seeds got there.
    """
    after = "" if seconds is None else f", after {duration_text(seconds)}"
    return _sentence(
        ranking, f"was first to {goal}{after}", "as fast as", lambda mean: f"{exp(mean):.2g} times"
    )


def value_headline(ranking: Ranking, measure: NamedMetric) -> str:
    """Say which label has the best value of a metric at the end."""
    more = "above" if measure.higher_is_better else "below"
    unit = " points" if measure.is_share else ""
    return _sentence(
        ranking, f"has the best {measure.words} at the end", more,
        lambda mean: f"{mean * measure.scale:.3g}{unit}",
    )  # fmt: skip


def _advantages(
    groups: Groups, measured: Mapping[str, Mapping[int, T]], ahead: Callable[[T, T], float | None]
) -> Advantages:
    """Pair the finished runs of a seed, of one kind of processor."""
    finished = {
        label: {run.seed: run for run in runs if run.status == "finished" and run.seed in measured[label]}
        for label, runs in groups.items()
    }
    return {
        (ours, theirs): {
            seed: ahead(measured[ours][seed], measured[theirs][seed])
            for seed, run in finished[ours].items()
            if seed in finished[theirs] and are_comparable(run, finished[theirs][seed])
        }
        for ours, theirs in permutations(groups, 2)
    }


def _rank(advantages: Advantages, planned: range, matters: float | None) -> Ranking | None:
    """Order the labels, and judge all pairs together."""
    if not advantages or not all(advantages.values()):
        return None
    means = {pair: fmean(value or 0.0 for value in found.values()) for pair, found in advantages.items()}
    labels = dict.fromkeys(ours for ours, _ in advantages)
    scores = {label: fmean(mean for (ours, _), mean in means.items() if ours == label) for label in labels}
    first = max(scores, key=lambda label: scores[label])
    followers = sorted((label for label in labels if label != first), key=lambda label: means[first, label])
    common = complete_seeds(planned.start, [frozenset(found) for found in advantages.values()])
    verdicts = _judge(_pairs([first, *followers], advantages), planned, common, matters)
    levels = looks(len(planned))
    return Ranking(
        (first, *followers),
        {label: means[first, label] for label in followers},
        {label: verdicts[first, label] for label in followers if (first, label) in verdicts},
        max((seeds for seeds in levels if seeds <= common), default=common),
        min(levels),
    )


def _pairs(labels: Sequence[str], advantages: Advantages) -> Advantages:
    """Each pair of labels once, the earlier label first."""
    place = {label: k for k, label in enumerate(labels)}
    return {pair: found for pair, found in advantages.items() if place[pair[0]] < place[pair[1]]}


def _judge(
    advantages: Advantages, planned: range, complete: int, matters: float | None
) -> Mapping[tuple[str, str], Verdict]:
    claims = {
        pair: SampledClaim(pair, "", [PairSample("", found)], planned, complete, matters=matters)
        for pair, found in advantages.items()
    }
    family = list(claims.values())
    verdicts = judge_family(family, answer_claims(family))
    return {
        pair: verdicts[pair, own.question] for pair, own in claims.items() if (pair, own.question) in verdicts
    }


def _sentence(ranking: Ranking, won: str, than: str, amount: Callable[[float], str]) -> str:
    """Compare the first label with the next one and with the last one."""
    first, *others = ranking.labels
    named = list(dict.fromkeys((others[0], others[-1])))
    gaps = [f"{amount(ranking.means[label])} {than} {label}" for label in named]
    noises = [_noise(ranking, label) for label in named]
    if len(set(noises)) == 1:
        both = "both " if len(named) > 1 else ""
        return f"{first} {won}: {' and '.join(gaps)}, {both}{noises[0]}."
    judged = [f"{gap} ({noise})" for gap, noise in zip(gaps, noises, strict=True)]
    return f"{first} {won}: {' and '.join(judged)}."


def _noise(ranking: Ranking, label: str) -> str:
    """What the verdict says of the noise."""
    seeds = f"{ranking.seeds} seed" + ("s" if ranking.seeds != 1 else "")
    match ranking.verdicts.get(label):
        case None:
            return f"not judged by {seeds}: the noise is judged from {ranking.first_look} seeds on"
        case Verdict.HELD:
            return f"beyond the noise of {seeds}"
        case Verdict.NO_DIFFERENCE:
            return f"without a difference that matters in {seeds}"
        case _:
            return f"within the noise of {seeds}"
