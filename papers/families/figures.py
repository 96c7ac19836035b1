"""The figure of each family: caches, time-optimal methods with their bound, and the price of the first k.

python papers/families/figures.py [--results papers/families/results] [--out docs/images]
"""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from offbeat.report.figures import save
from offbeat.report.palette import INK, choose_styles
from offbeat_papers.arm_rows import ItemRows, item_rows
from offbeat_papers.cells import study_cells
from offbeat_papers.figure import curves_figure
from offbeat_papers.load import load_study
from offbeat_papers.rows import Results

HERE = Path(__file__).parent


def main(
    results: Annotated[Path, typer.Option(help="folder of the rows")] = HERE / "results",
    out: Annotated[Path, typer.Option(help="folder of the figures")] = HERE.parents[1] / "docs" / "images",
) -> None:
    """Draw the figures of what has rows."""
    out.mkdir(parents=True, exist_ok=True)
    rows = Results(results)
    quick = ("fedbuff", "fedasync", "fedcompass", "first-of", "ringmaster", "rennala")
    if (drawn := draw("delay", "time", rows, ("fixed", "heavy"), quick)) is not None:
        add_bound(drawn.axes[0], load(rows, "delay", "time"), rows)
        typer.echo(save(drawn, out / "family_time_optimal.png"))
    waiting = ("fedavg", "first-of", "fedbuff")
    if (drawn := draw("delay", "time", rows, ("fixed", "divided"), waiting)) is not None:
        typer.echo(save(drawn, out / "family_first_of.png"))
    cached = ("fedavg", "fedbuff", "ca2fl", "ace", "mifa", "fedstale")
    if (drawn := draw("cached", "slow-classes", rows, ("tied", "independent"), cached)) is not None:
        typer.echo(save(drawn, out / "family_cached.png"))


def load(results: Results, study: str, item: str) -> ItemRows:
    """The rows of an item of a family's study."""
    found = load_study(HERE / f"{study}.yaml")
    return item_rows(found, item, "laptop", results, study_cells(found, "laptop"))


def draw(
    study: str, item: str, results: Results, columns: Collection[str], labels: Collection[str]
) -> Figure | None:
    """Draw some columns and labels of an item; None where none of their runs was made."""
    rows = load(results, study, item)
    runs = {arm: made for arm, made in rows.runs.items() if arm[0] in labels and arm[1] in columns}
    curves = results.curves(rows.study.name)
    return curves_figure(replace(rows, runs=runs), curves, choose_styles(rows.study.item_labels(item)))


def add_bound(ax: Axes, rows: ItemRows, results: Results) -> None:
    """Draw Rennala's accuracy as it were if no time were lost between the updates of a version.

    S updates take the least T with Σ ⌊T/τ_i⌋ ≥ S, where client i takes τ_i seconds for an update.
    """
    rennala = rows.study.recipe["algorithms"]["rennala"]
    seconds = np.array(rows.study.recipe["world"]["seconds_per_step"]) * rennala["steps"]
    ends = np.unique(np.outer(np.arange(1, rennala["size"] + 1), seconds).round(9))
    least = next(end for end in ends if np.floor(end / seconds + 1e-9).sum() >= rennala["size"])
    curves = results.curves(rows.study.name)
    made = [(row, curves[row.digest, rows.metric]) for row in rows.runs["rennala", "fixed"].values()]
    # The speeds do not vary, and so each of its versions takes as long as every other.
    shares = [least * row.versions / row.seconds for row, _ in made]
    mean = np.mean([curve.values for _, curve in made], axis=0)
    ax.step(
        np.mean(shares) * np.array(made[0][1].seconds), 100 * mean, where="post", color=INK, linewidth=1,
        linestyle=":",
    )  # fmt: skip
    typer.echo(f"a version of rennala takes {1 / np.mean(shares):.3f} of the least time, {least:.3f} s")
    ax.annotate(
        "thin black dots: rennala if no time were lost",
        (0.97, 0.05),
        xycoords="axes fraction",
        ha="right",
        fontsize=8,
    )


if __name__ == "__main__":
    typer.run(main)
