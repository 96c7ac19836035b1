"""Metrics of clients on the samples that they hold out: a table, and the distribution of the values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.core.metric_names import CLIENTS, QUANTILES, WORST, NamedMetric, finite, in_order
from offbeat.report.records import group_runs
from offbeat.runs.csv_text import csv_text
from offbeat.runs.record import RunRecord

_COLUMNS = ("evaluation", "t", "version", "client", "samples")


@dataclass(frozen=True, slots=True)
class ClientValues:
    """A metric of the clients of a run in its last evaluation there.

    Attributes:
        label: Label of the run.
        metric: The metric, such as "accuracy".
        names: Name of each client.
        values: Value of each client; None where the metric is undefined.
        mean: Mean weighted by samples, here and below None where no client has a value.
        p10: Value below which a tenth of the clients are.
        p50: Median over the clients.
        p90: Value above which a tenth of the clients are.
        worst: Place of the worst client in `values`.
    """

    label: str
    metric: str
    names: tuple[str, ...]
    values: tuple[float | None, ...]
    mean: float | None
    p10: float | None
    p50: float | None
    p90: float | None
    worst: int | None

    @property
    def scale(self) -> float:
        """100 where values are shown in percent, else 1."""
        return NamedMetric.of(self.metric).scale

    @property
    def title(self) -> str:
        """Metric and unit."""
        return NamedMetric.of(self.metric).title

    def places(self) -> list[tuple[float, float, str]]:
        """(value as it is shown, offset in [-0.3, 0.3] that keeps clients apart, name) of each client."""
        steps = ((k * 0.618034) % 1.0 for k in range(len(self.values)))
        found = zip(self.values, steps, self.names, strict=True)
        return [(v * self.scale, 0.6 * step - 0.3, name) for v, step, name in found if v is not None]


@dataclass(frozen=True, slots=True)
class ClientTable:
    """A table of the clients' metrics in some runs: the heads of its columns, and its rows."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def client_values(groups: Mapping[str, Sequence[RunRecord]]) -> dict[str, list[ClientValues]]:
    """Metrics of the clients of each label's lowest seed in its last evaluation there, by metric.

    Args:
        groups: The runs of each label, by seed.

    Returns:
        For each metric, accuracy first and loss last, the labels' values; runs that were not evaluated at
        clients are left out.
    """
    by_metric: dict[str, list[ClientValues]] = {}
    for label, runs in groups.items():
        rows = last_rows(runs[0])
        numbers = runs[0].metrics[rows[0]["evaluation"]] if rows else {}
        for metric in metrics_of(rows):
            by_metric.setdefault(metric, []).append(
                _values(label, metric, rows, numbers, runs[0].client_names())
            )
    return {metric: by_metric[metric] for metric in in_order(by_metric)}


def client_table(values: Mapping[str, Sequence[ClientValues]]) -> ClientTable:
    """A row for each label and metric: mean, worst client, quantiles."""
    heads = (
        "label",
        "metric",
        "clients",
        "mean",
        "worst",
        "worst client",
        "p10",
        "median",
        "p90",
        "undefined",
    )
    return ClientTable(heads, tuple(_row(v) for group in values.values() for v in group))


def each_client(record: RunRecord) -> ClientTable:
    """A row for each client of a run, as of its last evaluation there."""
    rows, names = last_rows(record), record.client_names()
    metrics = list(map(NamedMetric.of, metrics_of(rows)))
    heads = ("client", "samples", *(metric.title for metric in metrics))
    cells = [
        (_name(row, names), str(row["samples"]), *(_text(row.get(m.name), m.scale) for m in metrics))
        for row in rows
    ]
    return ClientTable(heads, tuple(cells))


def clients_csv(records: Sequence[RunRecord]) -> str:
    """Every evaluation of every client of some runs as CSV, unrounded, with `t` in seconds."""
    client_rows = [
        (record, row, record.client_names())
        for runs in group_runs(records).values()
        for record in runs
        for row in record.client_metrics()
    ]
    metrics = metrics_of([row for _, row, _ in client_rows])
    rows: list[list[Any]] = [["label", "seed", *_COLUMNS, "name", *metrics]]
    for record, row, names in client_rows:
        known = [record.label, record.seed, *(row[column] for column in _COLUMNS), names.get(row["client"])]
        rows.append([*known, *(row.get(metric) for metric in metrics)])
    return csv_text(rows)


def last_rows(record: RunRecord) -> list[dict[str, Any]]:
    """Metrics of each client in the run's last evaluation at clients."""
    rows = record.client_metrics()
    return [row for row in rows if row["evaluation"] == rows[-1]["evaluation"]]


def metrics_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the metrics in some rows, in the order in which they are shown."""
    return in_order(name for row in rows for name in row if name not in _COLUMNS)


def _values(
    label: str,
    metric: str,
    rows: Sequence[Mapping[str, Any]],
    numbers: Mapping[str, Any],
    names: Mapping[int, str],
) -> ClientValues:
    values = [row.get(metric) for row in rows]
    suffixes = ("", *(f".{statistic}" for statistic in (*QUANTILES, WORST)))
    mean, p10, p50, p90, worst = (finite(numbers.get(f"{CLIENTS}{metric}{suffix}")) for suffix in suffixes)
    place = values.index(worst) if worst is not None and worst in values else None
    clients = tuple(_name(row, names) for row in rows)
    return ClientValues(label, metric, clients, tuple(values), mean, p10, p50, p90, place)


def _row(v: ClientValues) -> tuple[str, ...]:
    known = sum(value is not None for value in v.values)
    worst = None if v.worst is None else v.values[v.worst]
    numbers = [_text(value, v.scale) for value in (v.mean, worst, v.p10, v.p50, v.p90)]
    client = "-" if v.worst is None else v.names[v.worst]
    return (v.label, v.title, str(known), *numbers[:2], client, *numbers[2:], str(len(v.values) - known))


def _name(row: Mapping[str, Any], names: Mapping[int, str]) -> str:
    return names.get(row["client"], f"client {row['client']}")


def _text(value: float | None, scale: float) -> str:
    return "-" if value is None else f"{value * scale:.4g}"
