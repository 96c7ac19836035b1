"""The statistics of features that a run has gathered, as a table and as a document."""

from math import isnan
from typing import TYPE_CHECKING

from offbeat.cli.console import add_row, out, plain_table

if TYPE_CHECKING:
    from offbeat.local.feature_statistics import FeatureStatistics

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def statistics_document(summary: "FeatureStatistics") -> dict[str, object]:
    """The statistics of all features, as JSON has them."""
    ranges = {_name(q): summary.quantile_range(q).T.tolist() for q in QUANTILES}
    features = [
        {**row, "ranges": {name: own[n] for name, own in ranges.items()}}
        for n, row in enumerate(_rows(summary))
    ]
    return {"samples": summary.samples, "labels": summary.labels.tolist(), "features": features}


def show_statistics(summary: "FeatureStatistics") -> None:
    """Print the features of all clients: missing values, means, deviations, quantiles, shares of labels."""
    rows = list(_rows(summary))
    out.print(f"{summary.samples} samples, {len(rows)} features", markup=False)
    table = plain_table("feature", *list(rows[0])[1:])
    for row in rows:
        add_row(table, *map(_cell, row.values()))
    out.print(table)
    if untold := summary.untold(QUANTILES):
        out.print(untold, markup=False, soft_wrap=True)
    if len(summary.labels):
        shares = ", ".join(f"{label}: {100 * share:.1f} %" for label, share in enumerate(summary.labels))
        out.print(f"labels {shares}", markup=False, soft_wrap=True)
    if summary.far_apart:
        out.print(f"{summary.apart_text}; have they the same unit?", markup=False, soft_wrap=True)


def _name(q: float) -> str:
    """The name of a quantile."""
    return f"q{round(100 * q)}"


def _cell(value: object) -> str:
    """A name or a number of the table; a dash for one that is not known."""
    if not isinstance(value, float):
        return str(value)
    return "–" if isnan(value) else f"{value:.4g}"


def _rows(summary: "FeatureStatistics") -> list[dict[str, object]]:
    """The numbers of each feature by name."""
    quantiles = {_name(q): summary.quantile(q) for q in QUANTILES}
    columns = {
        "missing": summary.missing,
        "mean": summary.mean,
        "std": summary.std,
        **quantiles,
        "±q50": summary.resolution(0.5),
        "between": summary.between,
    }
    return [
        {
            "feature": summary.names[feature],
            **{name: float(values[feature]) for name, values in columns.items()},
        }
        for feature in range(len(summary.mean))
    ]
