"""Reports on runs: a comparison table, learning curves, client timelines, an interactive page, figures.

Everything takes run records (`RunLike`) and groups them by label; the runs of a label are its seeds.

- `make_table` compares labels as FedCompass's Table 1 does; `to_rich`, `to_text`, `to_markdown` and
  `to_csv` render it.
- `make_curves` gives accuracy or loss against virtual time, versions or traffic.
- `findings` looks for what a paper claims of the labels, as a recipe's `claims` say it.
- `make_timeline` gives what each client of one run did when.
- `staleness_histograms` and `participation` give how stale updates were and who took part, from the
  totals that `read_activity` takes from a journal.
- `write_html` writes one self-contained interactive page, `write_png` the static figures.
"""

from offbeat.report.activity import Activity, read_activity
from offbeat.report.claims import Claim, Finding, claims_of, findings
from offbeat.report.curves import Curve, make_curves
from offbeat.report.distributions import (
    Participation,
    StalenessHistogram,
    participation,
    staleness_histograms,
)
from offbeat.report.html import write_html
from offbeat.report.records import RunLike, group_runs
from offbeat.report.render import to_csv, to_markdown, to_rich, to_text
from offbeat.report.static import write_png
from offbeat.report.table import Stat, Table, TableRow, make_table, read_activities
from offbeat.report.timeline import Aggregation, Timeline, make_timeline

__all__ = [
    "Activity",
    "Aggregation",
    "Claim",
    "Curve",
    "Finding",
    "Participation",
    "RunLike",
    "StalenessHistogram",
    "Stat",
    "Table",
    "TableRow",
    "Timeline",
    "claims_of",
    "findings",
    "group_runs",
    "make_curves",
    "make_table",
    "make_timeline",
    "participation",
    "read_activities",
    "read_activity",
    "staleness_histograms",
    "to_csv",
    "to_markdown",
    "to_rich",
    "to_text",
    "write_html",
    "write_png",
]
