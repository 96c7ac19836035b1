"""Metrics of an evaluation at clients: the mean over the clients, the worst of them, quantiles."""

from collections.abc import Mapping, Sequence
from math import fsum, isfinite, nan

from offbeat.core.events import ClientResults
from offbeat.core.metric_names import CLIENT_COUNT, CLIENTS, QUANTILES, UNDEFINED, WORST, NamedMetric


def aggregate_clients(results: ClientResults, higher_is_better: Mapping[str, bool] = {}) -> dict[str, float]:
    """Reduce the metrics of clients to numbers of the whole evaluation.

    For each metric, such as "accuracy", over the clients for which it is finite; NaN where there are none:

    | name | number |
    |---|---|
    | clients.accuracy | mean weighted by the clients' samples |
    | clients.accuracy.worst | the lowest, or the highest where lower is better |
    | clients.accuracy.p10, .p50, .p90 | quantiles over the clients, unweighted, interpolated linearly |
    | clients.accuracy.undefined | number of clients that are left out, as it is NaN or infinite; if any |

    Args:
        results: Samples and metrics by client; clients without samples are left out.
        higher_is_better: Whether more is better of a metric whose name does not tell.

    Returns:
        These numbers, and "clients.count", the number of clients. The same in whatever order clients stand.
    """
    evaluated = [found for _, found in sorted(results.items()) if found[0]]
    names = dict.fromkeys(name for _, metrics in evaluated for name in metrics)
    numbers = {CLIENT_COUNT: float(len(evaluated))}
    for name in names:
        told = [(samples, metrics[name]) for samples, metrics in evaluated if name in metrics]
        known = [(samples, value) for samples, value in told if isfinite(value)]
        total, values = sum(samples for samples, _ in known), sorted(value for _, value in known)
        worst = 0 if NamedMetric.of(name, higher_is_better).higher_is_better else -1
        at = CLIENTS + name
        numbers[at] = fsum(samples * value for samples, value in known) / total if known else nan
        numbers[f"{at}.{WORST}"] = values[worst] if known else nan
        for suffix, share in QUANTILES.items():
            numbers[f"{at}.{suffix}"] = _quantile(values, share) if known else nan
        if len(known) < len(told):
            numbers[f"{at}.{UNDEFINED}"] = float(len(told) - len(known))
    return numbers


def _quantile(ascending: Sequence[float], share: float) -> float:
    """A quantile of sorted values, at least one, interpolated linearly between two of them."""
    place = share * (len(ascending) - 1)
    low, rest = ascending[int(place)], place - int(place)
    return low + rest * (ascending[int(place) + 1] - low) if rest else low
