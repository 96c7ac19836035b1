"""Algorithms with privacy: which are refused, and the schedule whose updates are pooled."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from offbeat.algorithms.fedasmu.requests import LearnedTiming, RequestFreshModel
from offbeat.algorithms.fedfa import Window
from offbeat.algorithms.privacy.pooled import Pooled
from offbeat.algorithms.robust import Clipped, RobustAggregator
from offbeat.algorithms.wireless.iterations import AgeWeighted
from offbeat.core.aggregator import Aggregator, SumOnly
from offbeat.core.algorithm import Algorithm
from offbeat.core.buffers import UNSENT
from offbeat.core.features import Feature
from offbeat.core.layout import Layout
from offbeat.core.limits import Every, Until
from offbeat.core.metric_names import CLIENTS
from offbeat.core.privacy.privacy_options import MOST, Privacy
from offbeat.core.privacy.refusals import Refusal
from offbeat.core.schedule import Schedule
from offbeat.core.staleness import AgeWeight
from offbeat.core.wrapper import Wrapper, strip


def with_privacy(algorithm: Algorithm, privacy: Privacy) -> Algorithm:
    """The algorithm, whose updates are pooled and released as sums.

    Args:
        algorithm: The algorithm.
        privacy: The options, complete.
    """
    assert isinstance(algorithm.aggregator, SumOnly)
    return replace(algorithm, schedule=Pooled(algorithm.schedule, algorithm.aggregator, privacy))


def without_privacy(algorithm: Algorithm) -> Algorithm:
    """The algorithm as it was before `with_privacy`; any other as it is."""
    schedule = algorithm.schedule
    return replace(algorithm, schedule=schedule.inner) if isinstance(schedule, Pooled) else algorithm


def complete_privacy(privacy: Privacy, algorithm: Algorithm, clients: int) -> Privacy:
    """The options, completed from the algorithm and the number of clients.

    Raises:
        UsageError: The algorithm or its options cannot be used with privacy.
    """
    check_sums(algorithm, privacy)
    assert isinstance(algorithm.aggregator, SumOnly)
    equal = algorithm.aggregator.equal_weights
    if privacy.weight_bits == 0 and not equal:
        raise Refusal.UNEQUAL_WEIGHTS.error()
    size = algorithm.schedule.largest_aggregation
    if privacy.most is not None and size is not None and privacy.most < size:
        raise Refusal.MOST.error(most=privacy.most, size=size, name=algorithm.name)
    most = privacy.most or min(MOST, max(privacy.fewest, size or clients))
    bits = privacy.weight_bits if privacy.weight_bits is not None else 0 if equal else 4
    noise = privacy.noise
    if noise is not None and noise.budget.delta * clients >= 1:
        raise Refusal.DELTA.error(delta=noise.budget.delta, clients=clients)
    secure = privacy.secure
    if secure is not None:
        secure = replace(secure, colluding=secure.most_colluding)
    return replace(privacy, least=privacy.fewest, most=most, weight_bits=bits, secure=secure)


def check_sums(algorithm: Algorithm, privacy: Privacy) -> None:
    """Raises `UsageError` for an algorithm that needs, or gives away, more than sums of updates."""
    aggregator, name = strip(algorithm.aggregator, Feature.BOUNDED), algorithm.name
    if isinstance(aggregator, Window):
        raise Refusal.WINDOWS.error(name=name)
    if isinstance(aggregator, RobustAggregator) and privacy.noise is not None:
        raise Refusal.ROBUST.error(name=aggregator.kind)
    if aggregator.caches:
        raise Refusal.CACHED.error(name=name, others=", ".join(sum_only()))
    if not is_sum(aggregator):
        raise Refusal.SINGLE_UPDATES.error(name=name, others=", ".join(sum_only()))
    if isinstance(algorithm.aggregator, Clipped):
        raise Refusal.OTHER_CLIP.error()
    if Feature.SHARED_VECTOR in algorithm.requires:
        raise Refusal.SECOND_VECTOR.error(name=name)
    if Feature.NORMS in algorithm.requires:
        raise Refusal.NORMS.error(name=name)
    if Feature.LABELS in algorithm.requires and privacy.labels is None:
        raise Refusal.LABELS.error()
    if algorithm.codec is not None:
        raise Refusal.CODEC.error(codec=algorithm.codec.kind)
    gamma = _gamma(aggregator)
    if gamma > 1:
        raise Refusal.GROWING_WEIGHT.error(gamma=gamma)
    if privacy.noise is not None and any(_learns(schedule) for schedule in _layers(algorithm.schedule)):
        raise Refusal.LEARNED_SELECTOR.error()


def check_buffers(algorithm: Algorithm, layout: Layout) -> None:
    """Raises `UsageError` where clients would send buffers: sums are of the parameters."""
    if (layout.values > layout.parameters or layout.integers) and algorithm.buffers not in UNSENT:
        raise Refusal.BUFFERS.error(buffers=algorithm.buffers)


def check_client_metrics(privacy: Privacy, until: Until, every: Every) -> None:
    """Raises `UsageError` where, with noise, metrics of clients end the run or choose a model."""
    if privacy.noise is None:
        return
    kept = {} if every.keep_best is None else {every.keep_best: f"evaluate.keep_best = {every.keep_best!r}"}
    for metric, option in {**kept, **until.metrics}.items():
        if metric.startswith(CLIENTS):
            raise Refusal.CLIENT_METRICS.error(option=option)


def is_sum(aggregator: Aggregator) -> bool:
    """Whether an aggregator needs no more than a weighted sum of the updates."""
    return isinstance(aggregator, SumOnly) and Feature.SINGLE_UPDATES not in aggregator.requires


@cache
def sum_only() -> tuple[str, ...]:
    """Names of the published algorithms that can be used with privacy as they are, or with other options."""
    # `ALGORITHMS` is made of all modules of the package, this one included, so it cannot be imported above.
    from offbeat.algorithms import ALGORITHMS

    return tuple(name for name, factory in ALGORITHMS.items() if _accepted(factory()))


def _accepted(algorithm: Algorithm) -> bool:
    summed = is_sum(algorithm.aggregator)
    return summed and not algorithm.requires & {Feature.SHARED_VECTOR, Feature.NORMS, Feature.LABELS}


def _gamma(aggregator: Aggregator) -> float:
    """γ of an aggregator that weighs by age; 1 of any other."""
    if isinstance(aggregator, AgeWeighted):
        return aggregator.gamma
    staleness = getattr(aggregator, "staleness", None)
    return staleness.gamma if isinstance(staleness, AgeWeight) else 1.0


def _layers(schedule: Schedule) -> Iterator[Schedule]:
    """A schedule, and those inside of it."""
    yield schedule
    while isinstance(schedule, Wrapper):
        schedule = schedule.inner
        yield schedule


def _learns(schedule: Schedule) -> bool:
    return isinstance(schedule, RequestFreshModel) and isinstance(schedule.selector, LearnedTiming)
