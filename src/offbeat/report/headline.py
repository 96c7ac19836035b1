"""What a comparison comes to: who is first, by how much, and whether that is beyond the noise.

All pairs of labels are judged together, by the rule of studies (docs/studies.md): so the first and the next
may be chosen with the results in view. A label counts as being at the target if more than half of its seeds
got there. The others are named, and nothing is said of how much faster the first one was. Labels that tie for
the first place are all first.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import inf, isclose
from statistics import fmean
from typing import TypeVar

from offbeat.core.metric_names import NamedMetric
from offbeat.report.relative_times import Bound, TimeRatio, mostly_reached, time_ratio
from offbeat.report.seed_statistics import BySeed, stat
from offbeat.runs.record import RunRecord
from offbeat.units import Unit, number_text, plain_text
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
_FACTORS: Mapping[Bound, str] = {"": "", ">": "more than ", "<": "at most ", "≈": "about "}
# Most labels that are named of those that did not get to the target.
_MOST_NAMED = 3
# A mean over seeds that is not 0 by rounding alone.
_NOTHING = 1e-12
# A comparison has at most this number of seeds.
_MOST_SEEDS = 1000


@dataclass(frozen=True, slots=True)
class Headline:
    """What a comparison comes to.

    Attributes:
        text: It in words.
        first: The labels that were first to the target: one, or those that tie. Empty where values are
            compared.
    """

    text: str
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The labels that are compared from the first to the last, and what the runs say of the first.

    Attributes:
        first: The first labels: one, or those that tie with each other.
        labels: The others, by the mean advantage of the first over them.
        advantages: Advantage of the first over each of the others, by seed.
        verdicts: Whether the first is ahead of each other label; absent before the first look at the seeds.
        seeds: Number of the first seeds that the verdicts rest on; before the first look, of those that all
            labels have.
        first_look: Number of seeds with which a comparison is judged first.
    """

    first: tuple[str, ...]
    labels: tuple[str, ...]
    advantages: Mapping[str, Mapping[int, float | None]]
    verdicts: Mapping[str, Verdict]
    seeds: int
    first_look: int


def time_headline(
    groups: Groups,
    times: Mapping[str, BySeed],
    costs: Mapping[str, Mapping[int, Cost]],
    ends: Mapping[str, float],
    goal: str,
    unit: Unit,
) -> Headline | None:
    """Say which label was first to a target.

    Args:
        groups: The runs by label; those that have not finished are left out.
        times: The seconds to the target of each label by seed; None where it was not reached.
        costs: The same, with those of the last evaluation where it was not reached.
        ends: How good each label is at the end, by which labels that tie are ordered: more is better.
        goal: The target in words.
        unit: Unit of the times.

    Returns:
        The headline. None where no label reached the target in more than half of its seeds, or where not all
        labels can be compared with each other.
    """
    there = {label for label, found in times.items() if mostly_reached(found)}
    advantages = _advantages(groups, costs, log_ratio)
    ranking = _rank(advantages, _planned_seeds(groups), COST_THAT_MATTERS, there, ends)
    if ranking is None:
        return None
    first = ranking.first[0]
    ratios = {
        label: time_ratio(_of(costs[label], seeds), _of(costs[first], seeds))
        for label, seeds in ranking.advantages.items()
    }
    gaps = {label: f"{_speed(ratio)} {label}" for label, ratio in ratios.items()}
    reached = [time for time in times[first].values() if time is not None]
    of_seeds = len(times[first])
    were = "was" if len(ranking.first) == 1 else "were"
    won = f"{listed(ranking.first)} {were} first to {goal}, after {_time_text(reached, unit)}"
    if len(reached) < of_seeds:
        won += f" in {len(reached)} of {of_seeds} seeds"
    return Headline(
        " ".join(filter(None, [_sentence(ranking, won, gaps), _not_there(times, there)])), ranking.first
    )


def value_headline(
    groups: Groups,
    values: Mapping[str, BySeed],
    measure: NamedMetric,
    ends: Mapping[str, float],
    before: str = "",
) -> Headline | None:
    """Say which label has the best value of a metric at the end.

    Args:
        groups: The runs by label; those that have not finished are left out.
        values: The value of each label by seed.
        measure: The metric.
        ends: How good each label is at the end, by which labels that tie are ordered: more is better.
        before: A sentence that comes before.

    Returns:
        The headline. None where not all labels can be compared with each other.
    """
    sign = 1.0 if measure.higher_is_better else -1.0
    known = {
        label: {seed: value for seed, value in own.items() if value is not None}
        for label, own in values.items()
    }
    advantages = _advantages(groups, known, lambda ours, theirs: sign * (ours - theirs))
    matters = SHARE_THAT_MATTERS if measure.is_share else None
    ranking = _rank(advantages, _planned_seeds(groups), matters, values, ends)
    if ranking is None:
        return None
    more = "above" if measure.higher_is_better else "below"
    gaps = {
        label: f"{_amount(_mean(found), measure)} {more} {label}"
        for label, found in ranking.advantages.items()
    }
    have = "has" if len(ranking.first) == 1 else "have"
    won = f"{listed(ranking.first)} {have} the best {measure.words} at the end"
    return Headline(" ".join(filter(None, [before, _sentence(ranking, won, gaps)])))


def no_time_text(times: Mapping[str, BySeed], goal: str) -> str:
    """Say that no label got to the target, or in too few seeds."""
    ever = any(time is not None for found in times.values() for time in found.values())
    return f"No label reached {goal}{' in more than half of its seeds' if ever else ''}."


def _of(costs: Mapping[int, Cost], seeds: Iterable[int]) -> dict[int, Cost]:
    return {seed: costs[seed] for seed in seeds}


def _time_text(seconds: Sequence[float], unit: Unit) -> str:
    """The mean of some times as the table has it."""
    found = stat(seconds)
    assert found is not None
    spread = None if found.spread is None else found.spread / unit.size
    return f"{number_text(found.mean / unit.size, spread)} {unit.name}"


def _speed(ratio: TimeRatio | None) -> str:
    """How much faster the first is than one that took `ratio` times as long."""
    if ratio is None:
        return "ahead of"
    factor = plain_text(ratio.mean, 2)
    times = "" if factor == "1" else f"{factor} times "
    return f"{_FACTORS[ratio.bound]}{times}as fast as"


def _amount(gap: float, measure: NamedMetric) -> str:
    text = plain_text(gap * measure.scale, 3)
    return f"{text} {'point' if text == '1' else 'points'}" if measure.is_share else text


def _not_there(times: Mapping[str, BySeed], there: Collection[str]) -> str:
    """Name the labels that did not get to the target in more than half of their seeds."""
    counts: dict[str, list[str]] = {}
    for label, found in sorted(times.items()):
        if label not in there:
            reached = sum(time is not None for time in found.values())
            end = f"reached it in {reached} of {len(found)} seeds only" if reached else "did not reach it"
            counts.setdefault(end, []).append(label)
    parts = [f"{listed(labels)} {end}" for end, labels in sorted(counts.items())]
    return f"{'; '.join(parts)}." if parts else ""


def listed(labels: Sequence[str]) -> str:
    """Names in a sentence: "a", "a and b", "a, b and c"; of many the first ones."""
    if len(labels) > _MOST_NAMED:
        labels = [*labels[: _MOST_NAMED - 1], f"{len(labels) - _MOST_NAMED + 1} others"]
    return " and ".join(filter(None, [", ".join(labels[:-1]), labels[-1]]))


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
            if seed in finished[theirs] and _are_comparable(run, finished[theirs][seed])
        }
        for ours, theirs in permutations(groups, 2)
    }


def _rank(
    advantages: Advantages,
    planned: range,
    matters: float | None,
    chosen: Collection[str],
    ends: Mapping[str, float],
) -> _Ranking | None:
    """Order the chosen labels, and judge all pairs of all labels together; ties follow the ends and names."""
    if not advantages or not all(advantages.values()) or not chosen:
        return None
    means = {pair: _mean(found) for pair, found in advantages.items()}

    def place(label: str, score: float) -> tuple[float, float, str]:
        return -score, -ends.get(label, -inf), label

    scores = {label: fmean([means[label, other] for other in chosen if other != label] or [0.0])
              for label in chosen}  # fmt: skip
    first = min(chosen, key=lambda label: place(label, scores[label]))
    followers = sorted(
        (label for label in chosen if label != first), key=lambda label: place(label, -means[first, label])
    )
    ties = [label for label in followers if isclose(means[first, label], 0, abs_tol=_NOTHING)]
    followers = [label for label in followers if label not in ties]
    others = sorted({label for label, _ in advantages} - set(chosen))
    common = complete_seeds(planned.start, [frozenset(found) for found in advantages.values()])
    verdicts = _judge(_pairs([first, *ties, *followers, *others], advantages), planned, common, matters)
    levels = looks(len(planned))
    return _Ranking(
        (first, *ties),
        tuple(followers),
        {label: advantages[first, label] for label in followers},
        {label: verdicts[first, label] for label in followers if (first, label) in verdicts},
        max((seeds for seeds in levels if seeds <= common), default=common),
        min(levels),
    )


def _mean(advantages: Mapping[int, float | None]) -> float:
    """The mean over the seeds, of which one in which nobody got there counts as equal."""
    return fmean(value or 0.0 for value in advantages.values())


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


def _sentence(ranking: _Ranking, won: str, gaps: Mapping[str, str]) -> str:
    """Compare the first labels with the next one and with the last one."""
    others = ranking.labels
    if len(ranking.first) > 1:
        won += " (a tie)"
    if not others:
        return f"{won}."
    named = list(dict.fromkeys((others[0], others[-1])))
    noises = [_noise(ranking, label) for label in named]
    if len(set(noises)) == 1:
        both = "both " if len(named) > 1 else ""
        return f"{won}: {' and '.join(gaps[label] for label in named)}, {both}{noises[0]}."
    judged = [f"{gaps[label]} ({noise})" for label, noise in zip(named, noises, strict=True)]
    return f"{won}: {' and '.join(judged)}."


def _noise(ranking: _Ranking, label: str) -> str:
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
            return f"not decided by {seeds}"


def _planned_seeds(groups: Mapping[str, Sequence[RunRecord]]) -> range:
    """The seeds that the recipe of the first run plans, from the least seed of all runs on."""
    runs = [run for own in groups.values() for run in own]
    first = min((run.seed for run in runs), default=0)
    recipe = runs[0].recipe if runs else None
    seeds = (recipe or {}).get("seeds")
    planned = seeds if isinstance(seeds, int) and 0 < seeds <= _MOST_SEEDS else 0
    return range(first, first + planned)


def _are_comparable(run: RunRecord, other: RunRecord) -> bool:
    """Whether two runs are of one kind of processor."""
    return run.processors == other.processors
