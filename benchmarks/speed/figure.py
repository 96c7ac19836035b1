"""The picture of the tables: bars of medians with their ranges, and the bare loop as a line."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from figures import spread, times

COLOURS = {"bare": "#888888", "ours": "#3f51b5"}
PEER = "#e0a030"
WIDE = 50  # from this ratio of the slowest to the fastest on, an axis is logarithmic


def draw(results: Mapping[str, Any], path: Path) -> None:
    """One panel a table."""
    tables = [
        (table, rows)
        for table in results["tables"]
        if (rows := [row for row in table["rows"] if times(row, table["unit"])])
    ]
    if not tables:
        return
    heights = [len(rows) + 2 for _, rows in tables]
    figure, panels = plt.subplots(
        len(tables), 1, figsize=(9, 0.32 * sum(heights)), height_ratios=heights, squeeze=False
    )
    for panel, (table, rows) in zip(panels[:, 0], tables, strict=True):
        for at, row in enumerate(rows):
            values = [v * table["shown"] / table["scale"] for v in times(row, table["unit"]).values()]
            s = spread(values)
            panel.barh(at, s.median, color=COLOURS.get(row["runner"], PEER))
            panel.errorbar(
                s.median, at, xerr=[[s.median - s.low], [s.high - s.median]], color="black", capsize=2
            )
            if row["runner"] == "bare":
                panel.axvline(s.median, color=COLOURS["bare"], linewidth=0.8, linestyle="--")
        panel.set_yticks(range(len(rows)), [row["name"] for row in rows])
        panel.invert_yaxis()
        medians = [spread(list(times(row, table["unit"]).values())).median for row in rows]
        if max(medians) > WIDE * min(medians):
            panel.set_xscale("log")
        panel.set_xlabel(table["column"])
        panel.set_title(fill(table["title"], 80), fontsize=9, loc="left")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)
