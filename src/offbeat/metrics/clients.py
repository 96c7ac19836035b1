"""Metrics of an evaluation at clients: the mean over the clients, the worst of them, quantiles."""

from collections.abc import Mapping, Sequence
from math import fsum, isfinite, nan

from offbeat.core.events import ClientResults
from offbeat.core.metric_names import CLIENT_COUNT, CLIENTS, QUANTILES, UNDEFINED, WORST, NamedMetric


def aggregate_clients(results: ClientResults, higher_is_better: Mapping[str, bool] = {}) -> dict[str, float]:
    """Reduce the metrics of clients to numbers of the whole evaluation.

    The numbers of a metric, such as "accuracy", use the clients where it is finite. Without any they are NaN:

    | name | number |
    |---|---|
    | clients.accuracy | mean weighted by the clients' samples |
    | clients.accuracy.worst | the lowest, or the highest where lower is better |
    | clients.accuracy.p10, .p50, .p90 | quantiles over the clients, unweighted, interpolated linearly |
    | clients.accuracy.undefined | number of clients that are left out, as it is NaN or infinite; if any |

    Args:
        results: Samples and metrics by client; clients without samples are left out.
        higher_is_better: Whether more is better, by name, for metrics whose names do not tell.

    Returns:
        These numbers, and "clients.count", the number of clients. The order of the clients does not matter.
    """
    evaluated = [found for _, found in sorted(results.items()) if found[0]]
    names = dict.fromkeys(name for _, metrics in evaluated for name in metrics)
    numbers = {CLIENT_COUNT: float(len(evaluated))}
    for name in names:
        reports = [(samples, metrics[name]) for samples, metrics in evaluated if name in metrics]
        defined = [(samples, value) for samples, value in reports if isfinite(value)]
        total, values = sum(samples for samples, _ in defined), sorted(value for _, value in defined)
        worst = 0 if NamedMetric.of(name, higher_is_better).higher_is_better else -1
        at = CLIENTS + name
        numbers[at] = fsum(samples * value for samples, value in defined) / total if defined else nan
        numbers[f"{at}.{WORST}"] = values[worst] if defined else nan
        for suffix, share in QUANTILES.items():
            numbers[f"{at}.{suffix}"] = _quantile(values, share) if defined else nan
        if len(defined) < len(reports):
            numbers[f"{at}.{UNDEFINED}"] = float(len(reports) - len(defined))
    return numbers


def _quantile(ascending: Sequence[float], share: float) -> float:
    """A quantile of sorted values, at least one, interpolated linearly between two of them."""
    place = share * (len(ascending) - 1)
    low, rest = ascending[int(place)], place - int(place)
    return low + rest * (ascending[int(place) + 1] - low) if rest else low
