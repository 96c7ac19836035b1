"""Tables of FedFa and FedASMU, scaled to a laptop, beside the papers' numbers.

    python benchmarks/paper_tables.py fedfa --out runs/fedfa [--jobs 2] [--seeds 3]
    python benchmarks/paper_tables.py fedasmu --out runs/fedasmu

fedfa is Table 2 (times) and Table 4 (accuracies) for CIFAR-10, here the recipe fedfa/fashion-small, not
IID and IID. fedasmu is the column LeNet, FMNIST of Table 4, here fedasmu/fashion-small. Called again on
the same directory it goes on where it was.

Writes table.md beside the runs, for each setting and target: time to the target relative to the recipe's
baseline (mean over the seeds that get there; "-" where at least half do not) and best accuracy, each
beside the paper's, how many seeds get there, and whether the order of times agrees in the pairs that the
paper separates by more than 1.3x. Labels that are not in the paper's table have "none" there.
"""

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from offbeat.recipes.compare import plan
from offbeat.recipes.load import load_recipe
from offbeat.report import TableRow, make_table
from studies import Orders, run, times

Numbers = Mapping[str, float | None]


@dataclass(frozen=True)
class Setting:
    """The paper's column: seconds to its target by label (None: never), and best accuracies."""

    scale: str | None
    seconds: Numbers
    accuracy: Numbers

    def relative(self, baseline: str) -> Numbers:
        """The times relative to a label's, or to the fastest's where the paper has none of that label."""
        reference = self.seconds.get(baseline) or min(s for s in self.seconds.values() if s)
        return {label: s and s / reference for label, s in self.seconds.items()}


FEDFA = "fedavg", "fedasync", "fedbuff", "port-urgent", "port-non-urgent", "fedfa-param", "fedfa-delta"
FEDFA_BEST = "fedavg", "fedbuff", "fedfa-param", "fedfa-delta"
FEDASMU = {  # Table 4, LeNet, FMNIST: accuracy, seconds to 70 %
    "fedasmu": (0.858, 11603),
    "fedasync": (0.839, 15941),
    "port": (0.799, 75323),
    "asofed": (0.833, 42472),
    "fedbuff": (0.827, 16953),
    "fedssmu": (0.858, 13753),
    "fedavg": (0.780, 97692),
    "fedprox": (0.778, 97692),
    "moon": (0.785, 97692),
    "feddyn": (0.842, 51223),
    "fedlws": (0.846, 20599),
}
STUDIES = {
    "fedfa": {
        "non-IID": Setting(
            None,
            dict(zip(FEDFA, (9833, None, 4375, 3000, 3320, 2282, 1917), strict=True)),
            dict(zip(FEDFA_BEST, (0.6570, 0.6557, 0.6539, 0.6474), strict=True)),
        ),
        "IID": Setting(
            "iid",
            dict(zip(FEDFA, (5040, None, 1541, 1503, 1668, 1102, 855), strict=True)),
            dict(zip(FEDFA_BEST, (0.7690, 0.7776, 0.7781, 0.7831), strict=True)),
        ),
    },
    "fedasmu": {
        "LeNet, FMNIST": Setting(
            None,
            {label: seconds for label, (_, seconds) in FEDASMU.items()},
            {label: accuracy for label, (accuracy, _) in FEDASMU.items()},
        )
    },
}


def side_by_side(rows: tuple[TableRow, ...], paper: Setting, baseline: str) -> Iterator[str]:
    """Ours and the paper's, label by label."""
    yield "| algorithm | time | paper | seeds there | best accuracy | paper |"
    yield "|---|---|---|---|---|---|"
    relative = paper.relative(baseline)
    for row in rows:
        theirs = times(relative[row.label]) if row.label in relative else "none"
        best = paper.accuracy.get(row.label)
        ours = "-" if row.best is None else f"{row.best.mean:.3f} ± {row.best.std:.3f}"
        yield (
            f"| {row.label} | {times(row.relative)} | {theirs} | {row.reached} of {row.seeds} | "
            f"{ours} | {'none' if best is None else f'{best:.3f}'} |"
        )


def main() -> None:
    """Run the settings of a study and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--seeds", type=int, help="default: the recipe's")
    parser.add_argument("--targets", type=float, nargs="+", help="default: the recipe's, by setting")
    parser.add_argument("--labels", help="a comma-separated choice; default: the recipe's")
    parser.add_argument("--baseline", help="whose time is 1.00x; default: the recipe's")
    parser.add_argument("--set", action="append", default=[], help="change the recipe: section.key=value")
    options = parser.parse_args()
    began, lines = time.monotonic(), []
    for name, paper in STUDIES[options.study].items():
        recipe = load_recipe(
            f"{options.study}/fashion-small", scales=[paper.scale] if paper.scale else [], sets=options.set
        )
        labels = options.labels.split(",") if options.labels else list(recipe.algorithms)
        place = options.out / name.lower().replace(", ", "-")
        records = run(plan(recipe, labels, options.seeds or recipe.seeds, place), options.jobs, name)
        for target in options.targets or [recipe.target]:
            table = make_table(records, target=target, baseline=options.baseline or recipe.baseline)
            orders = Orders()
            orders.add(name, paper.relative(table.baseline), table.rows, records, target)
            lines += [f"## {name}: time to {100 * target:g} %, relative to {table.baseline}", ""]
            lines += [*side_by_side(table.rows, paper, table.baseline), "", *orders.lines(), ""]
    lines += [f"This call took {(time.monotonic() - began) / 60:.0f} minutes."]
    text = "\n".join(lines)
    (options.out / "table.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
