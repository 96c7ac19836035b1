"""Draw the picture of the front pages: where FedAvg waits, where FedBuff does not, and what that costs.

    offbeat compare stragglers --out runs/demo
    python docs/contrast.py runs/demo

The timelines are those of the first seed, the curves the means over all seeds.
"""

import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from offbeat.report import make_curves, make_timeline
from offbeat.report.palette import INK, WAITING, WAITING_LINES, choose_styles
from offbeat.runs.record import RunRecord, read_run

IMAGE = Path(__file__).parent / "images" / "contrast.png"
SHOWN = {
    "fedavg": "FedAvg: all wait for the slowest",
    "fedbuff": "FedBuff: nobody waits, three updates make a version",
}
SECONDS, TARGET = 60, 80
TASKS = 1000


def draw_timeline(axes: Axes, run: RunRecord, colour: str) -> None:
    """Draw a bar for each task, hatched where a client waits."""
    timeline = make_timeline(run, until=SECONDS, max_tasks=TASKS)
    for span in timeline.waiting:
        axes.barh(
            span.client, span.seconds, left=span.start, height=0.7, color=WAITING, hatch="////",
            edgecolor=WAITING_LINES, linewidth=0,
        )  # fmt: skip
    for task in timeline.training:
        axes.barh(
            task.client,
            task.seconds,
            left=task.start,
            height=0.7,
            color=colour,
            edgecolor="white",
            linewidth=0.6,
        )  # fmt: skip
    for aggregation in timeline.aggregations:
        axes.axvline(aggregation.t, color=INK, linewidth=0.7, linestyle=":", alpha=0.5)
    axes.set(xlim=(0, SECONDS), ylim=(9.6, -0.6), yticks=range(10), ylabel="client")
    axes.tick_params(labelsize=8)


def draw(runs: list[RunRecord], image: Path) -> None:
    """Draw the timelines of two labels at the left, and the curves of all at the right."""
    labels = list(dict.fromkeys(run.label for run in runs))
    styles = choose_styles(labels)
    figure = Figure(figsize=(11, 4.9), layout="constrained", facecolor="white")
    grid = figure.add_gridspec(2, 2, width_ratios=[1.15, 1])
    for row, (label, title) in enumerate(SHOWN.items()):
        axes = figure.add_subplot(grid[row, 0])
        first = min((run for run in runs if run.label == label), key=lambda run: run.seed)
        draw_timeline(axes, first, styles[label].colour)
        axes.set_title(title, loc="left", fontsize=11, color=styles[label].colour, fontweight="bold")
    axes.set_xlabel(f"virtual time (s); the first {SECONDS} of {max(run.duration for run in runs):.0f}")
    axes = figure.add_subplot(grid[:, 1])
    for curve in make_curves(runs, "time", "accuracy", 400):
        colour, mean, std = styles[curve.label].colour, 100 * curve.mean, 100 * curve.std
        axes.plot(curve.x, mean, color=colour, linewidth=1.8, drawstyle="steps-post")
        axes.fill_between(curve.x, mean - std, mean + std, color=colour, alpha=0.12, step="post", linewidth=0)
        axes.plot([], [], color=colour, linewidth=3, label=curve.label)
    axes.axhline(TARGET, color=INK, linewidth=0.9, linestyle="--")
    axes.set(xlim=(0, None), ylim=(0, 100), xlabel="virtual time (s)")
    axes.legend(frameon=False, loc="lower right")
    axes.grid(alpha=0.25)
    axes.set_title("test accuracy (%), mean and deviation of the seeds", loc="left", fontsize=11)
    figure.savefig(image, dpi=110, metadata={"Software": None})


def main() -> None:
    """Draw the runs of a folder."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    draw([read_run(path.parent) for path in sorted(folder.rglob("run.db"))], IMAGE)
    print(f"{IMAGE.name}: {IMAGE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
