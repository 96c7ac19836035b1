"""Figures 3 to 8 of the wireless paper: run them, draw them, and go through its claims one by one.

    python benchmarks/wireless_figures.py --out runs/wireless [--figures 3,7] [--scale paper] [--images DIR]

Each figure is run with non-i.i.d. and with i.i.d. data by its recipe, `wireless/figN`. What is in `--out`
already is kept, so an interrupted call goes on. Needs the dataset mnist.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from offbeat.recipes.compare import plan
from offbeat.recipes.load import load_recipe
from offbeat.report import Claim, findings, group_runs, make_curves
from offbeat.report.claims import By, cells, level
from offbeat.report.figures import LINE_STYLES, new_figure, plain, save
from offbeat.report.palette import choose_styles
from offbeat.runs.record import RunRecord
from studies import run

PANELS = {"non-iid": [], "iid": ["iid"]}
LOSS = [6]
ACROSS = {  # what the paper says of two panels of one figure
    6: [
        Claim("the training loss is lower with i.i.d. data", "random, iid", ["random, non-iid"], by="loss"),
        Claim(
            "the training loss is lower with i.i.d. data", "proposed, iid", ["proposed, non-iid"], by="loss"
        ),
    ],
}
Panels = Mapping[str, Sequence[RunRecord]]


def levels(panels: Panels, by: By) -> Iterator[str]:
    """Every label's number in both panels, as Markdown."""
    unit = "loss" if by == "loss" else "accuracy, %"
    yield f"| mean over the last fifth ({unit}) | non-i.i.d. | i.i.d. |"
    yield "|---|---|---|"
    groups = {panel: group_runs(records) for panel, records in panels.items()}
    for label in groups["non-iid"]:
        shown = []
        for panel in PANELS:
            found = [level(r, by) for r in groups[panel][label]]
            scale, digits = (1, 3) if by == "loss" else (100, 1)
            values = [scale * v for v in found if v is not None]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            shown.append(f"{statistics.mean(values):.{digits}f} ± {spread:.{digits}f}")
        yield f"| {label} | {' | '.join(shown)} |"


def claims(figure: int, panels: Panels) -> Iterator[str]:
    """What the paper says beside what the runs show, as Markdown."""
    yield "| the paper says | data | here | gap | seeds | holds |"
    yield "|---|---|---|---|---|---|"
    for panel, records in panels.items():
        own = load_recipe(f"wireless/fig{figure}", scales=PANELS[panel]).claims
        for found in findings(group_runs(records), own):
            yield f"| {found.says} | {panel} | {' | '.join(cells(found))} |"
    both = {
        f"{label}, {panel}": runs
        for panel, records in panels.items()
        for label, runs in group_runs(records).items()
    }
    for found in findings(both, ACROSS.get(figure, [])):
        yield f"| {found.says} | both | {' | '.join(cells(found))} |"


def draw(figure: int, panels: Panels, images: Path) -> Path:
    """The figure's two panels, one over the other."""
    measure = "loss" if figure in LOSS else "accuracy"
    axis = "versions" if figure in LOSS else "time"
    style = choose_styles(group_runs(panels["non-iid"]))
    drawing, axes = new_figure(7.5, 7.0, 2)
    for ax, (panel, records) in zip(axes, panels.items(), strict=True):
        for curve in make_curves(records, axis, measure):
            look, scale = style[curve.label], curve.measure.scale
            mean, std = scale * curve.mean, scale * curve.std
            ax.fill_between(curve.x, mean - std, mean + std, step="post", color=look.colour, alpha=0.12, lw=0)
            ax.step(
                curve.x, mean, where="post", color=look.colour, linestyle=LINE_STYLES[look.dash], lw=1.4,
                label=plain(curve.label),
            )  # fmt: skip
        ax.set_title("i.i.d. data" if panel == "iid" else "non-i.i.d. data", loc="left", fontsize=10)
        ax.set_ylabel("training loss" if measure == "loss" else "accuracy (%)")
        ax.set_xlim(left=0)
    axes[-1].set_xlabel("iterations" if axis == "versions" else "virtual time (s); T_max = 4 s")
    axes[0].legend(frameon=False, fontsize=9)
    return save(drawing, images / f"wireless_fig{figure}.png")


def main() -> None:
    """Run the figures that are asked for, and print their tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figures", default="3,4,5,6,7,8", help="a comma-separated choice")
    parser.add_argument("--scale", action="append", default=[], help="a further scale, such as paper")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--images", type=Path, help="where the figures go; default: --out")
    options = parser.parse_args()
    images = options.images or options.out
    images.mkdir(parents=True, exist_ok=True)
    text: list[str] = []
    for figure in map(int, options.figures.split(",")):
        began, panels = time.monotonic(), {}
        for panel, scales in PANELS.items():
            recipe = load_recipe(f"wireless/fig{figure}", scales=[*scales, *options.scale])
            jobs = plan(recipe, list(recipe.algorithms), recipe.seeds, options.out / f"fig{figure}" / panel)
            panels[panel] = run(jobs, options.jobs, f"figure {figure}, {panel}")
        text += [f"## {recipe.title}", "", *levels(panels, "loss" if figure in LOSS else "accuracy"), ""]
        text += [*claims(figure, panels), ""]
        text += [
            f"Drawn to {draw(figure, panels, images).name}; {(time.monotonic() - began) / 60:.0f} minutes.",
            "",
        ]
    (options.out / "claims.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
