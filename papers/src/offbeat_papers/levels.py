"""The way of a run to a target: its costs at six levels between the initial model and the target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from offbeat.core.metric_names import NamedMetric
from offbeat.verdicts.cost import Cost, log_ratio

Evaluation = Mapping[str, Any]
"""A recorded evaluation: "t", "version", "tasks", "bytes_up", "bytes_down", and its metrics by name."""
Costs = tuple[float, float, float, float]
"""Virtual seconds, versions, tasks that arrived, and bytes up and down; interpolated, so none is whole."""

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""The levels, each a share of the way from the metric of the initial model to the target."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class RunLevels:
    """The costs at which a run reached the levels on the way to a target.

    Attributes:
        digest: Digest of the run.
        machine: As in the run's row: a run that was made on several kinds of processor has levels of each.
        metric: The metric.
        target: The target, as it stands in rows.
        costs: The costs at each of `LEVELS`. None means that the run missed the level.
    """

    digest: str
    machine: str
    metric: str
    target: str
    costs: tuple[Costs | None, ...]


def level_costs(
    evaluations: Sequence[Evaluation], measure: NamedMetric, target: float
) -> tuple[Costs | None, ...]:
    """The interpolated costs at which the best value so far reaches each of `LEVELS`.

    Between two evaluations the best value so far, and each cost, is a straight line. A level that the initial
    model has costs what the first evaluation came after.

    Args:
        evaluations: The evaluations that have the metric, in order; the first one is of the initial model.
        measure: The metric.
        target: The target.
    """
    if not evaluations:
        return (None,) * len(LEVELS)
    sign = 1.0 if measure.higher_is_better else -1.0
    values = [sign * float(each[measure.name]) for each in evaluations]
    goal, found, place = sign * target, list[Costs | None](), 0
    best = values[0]
    for share in LEVELS:
        # A value at a level must not miss the level by rounding: the best value so far may rise much later.
        level = goal if share == 1 else values[0] + (share - _ROUNDING) * (goal - values[0])
        while best < level and place + 1 < len(values) and values[place + 1] < level:
            place += 1
            best = max(best, values[place])
        if best >= level:
            found.append(_costs(evaluations[place]))
        elif place + 1 < len(values):
            part = (level - best) / (values[place + 1] - best)
            ends = _costs(evaluations[place]), _costs(evaluations[place + 1])
            found.append(_between(*ends, part))
        else:
            found.append(None)
    return tuple(found)


def _costs(evaluation: Evaluation) -> Costs:
    traffic = (evaluation["bytes_up"] or 0) + (evaluation["bytes_down"] or 0)
    return float(evaluation["t"]), float(evaluation["version"]), float(evaluation["tasks"]), float(traffic)


def _between(before: Costs, after: Costs, part: float) -> Costs:
    seconds, versions, tasks, traffic = (
        one + part * (other - one) for one, other in zip(before, after, strict=True)
    )
    return seconds, versions, tasks, traffic


@dataclass(frozen=True, slots=True)
class Climb:
    """The way of a run to a target, in one kind of cost.

    Attributes:
        costs: The cost of each of `LEVELS`; of a level that the run missed, what the run spent in all.
        end: What the run spent in all.
    """

    costs: tuple[Cost, ...]
    end: float

    def until(self, horizon: float) -> "Climb":
        """The way within a horizon: levels that cost more are missed."""
        limited = (Cost(min(c.amount, horizon), c.reached and c.amount <= horizon) for c in self.costs)
        return Climb(tuple(limited), min(self.end, horizon))


def level_advantage(better: Climb, other: Climb) -> float | None:
    """The mean over levels of the logarithm of the other's cost over the better one's.

    A level that one run misses counts with what that run spent. A level that both miss counts 0.

    Args:
        better: The run that the claim says is ahead.
        other: The other run, with as many levels.

    Returns:
        The advantage. None means that both runs miss all levels.
    """
    ratios = [log_ratio(*costs) for costs in zip(better.costs, other.costs, strict=True)]
    return None if all(ratio is None for ratio in ratios) else fmean(ratio or 0.0 for ratio in ratios)


def fair_advantage(better: Climb, other: Climb) -> float | None:
    """`level_advantage` within what both runs spent.

    If one run lasts longer, a late level counts with its cost there, and with the earlier end in the other
    run. So without this limit the run that ends first would be ahead on average if there is no difference.
    """
    horizon = min(better.end, other.end)
    return level_advantage(better.until(horizon), other.until(horizon))
