"""A run as HTML: its numbers in a small table, beside its figure."""

from base64 import b64encode
from collections.abc import Iterator
from html import escape

from offbeat.core.metric_names import NamedMetric, in_order, is_statistic
from offbeat.core.privacy.privacy_options import privacy_text
from offbeat.notebook.figure import draw_small
from offbeat.runs.presentation import RunView
from offbeat.runs.summary import Summary
from offbeat.units import duration_text, size_text


def to_html(run: RunView) -> str:
    """A run's numbers and figure as a fragment of HTML, without scripts."""
    rows = "".join(
        f'<tr style="text-align: left"><th>{escape(name)}</th><td>{escape(text)}</td></tr>'
        for name, text in _numbers(run)
    )
    image = b64encode(draw_small(run)._repr_png_()).decode()
    return (
        '<div style="display: flex; flex-wrap: wrap; align-items: center; gap: 1em">'
        f"<table><caption>{escape(run.label)}, seed {run.seed}</caption>{rows}</table>"
        f'<img alt="{escape(run.label)} over time" src="data:image/png;base64,{image}"></div>'
    )


def _numbers(run: RunView) -> Iterator[tuple[str, str]]:
    """Names and texts of the table."""
    summary = run.summary
    yield "ended", run.stop_reason or "not yet"
    yield "time", duration_text(run.from_begin().duration)
    if summary is None:
        return
    yield "versions", f"{summary.versions:,}"
    yield "tasks", _tasks(summary)
    yield "mean staleness", f"{summary.mean_staleness:.2f}"
    for name in in_order(summary.metrics):
        if not is_statistic(name):
            measure = NamedMetric.of(name, run.higher_is_better)
            best = summary.best_metrics.get(name)
            text = measure.value_text(summary.metrics[name])
            yield measure.words, text if best is None else f"{text}, at best {measure.value_text(best)}"
    if summary.privacy is not None:
        yield "privacy", privacy_text(summary.privacy)
    yield "sent", f"{size_text(summary.bytes_up)} up, {size_text(summary.bytes_down)} down"
    if run.path is not None:
        yield "directory", str(run.path)


def _tasks(summary: Summary) -> str:
    counts = {
        "aggregated": summary.aggregated, "dropped": summary.dropped, "lost": summary.lost,
        "held": summary.held, "in training": summary.running,
    }  # fmt: skip
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "0"
