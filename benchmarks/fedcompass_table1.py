"""FedCompass's Table 1 for m = 10, scaled to a laptop, beside the paper's numbers.

    python benchmarks/fedcompass_table1.py --out runs/table1 [--jobs 2] [--seeds 3]

Six settings (class partition and dual Dirichlet; homogeneous, normal and exponential speeds), every
algorithm of the table that is here, on Fashion-MNIST as the recipe fedcompass/fashion-small scales
it. As in the paper the asynchronous algorithms get the same virtual time, and the synchronous ones the
same number of rounds, which takes longer. Called again on the same directory it goes on where it was.

Writes table1.md beside the runs, for each target: relative time to it, ours / the paper's, and whether
the order agrees in the pairs that the paper separates by more than 1.3x, over all seeds and seed by seed.
"""

import argparse
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from offbeat.recipes.compare import plan
from offbeat.recipes.load import load_recipe
from offbeat.report import TableRow, make_table, to_markdown
from offbeat.runs.record import RunRecord
from studies import Orders, run, times

RECIPE = "fedcompass/fashion-small"
SYNCHRONOUS = ("fedavg", "fedavgm")
ROUNDS_OF_TASKS = 300  # 30 rounds of ten clients

Tables = dict[tuple[str, str], Sequence[TableRow]]
Records = dict[tuple[str, str], list[RunRecord]]

PARTITIONS = {
    "class": "{kind: class, min_classes: 3, max_classes: 5, mean: 10, std: 3}",
    "dirichlet": "{kind: dual_dirichlet, alpha1: 10, alpha2: 0.5}",
}
SPEEDS = {
    "homogeneous": "{law: constant, mean: 0.15}",
    "normal": "{law: normal, mean: 0.15, std: 0.3}",
    "exponential": "{law: exponential, mean: 0.15, minimum: 0.05}",
}
# Table 1, MNIST (90 %), m = 10; None is the paper's "-"
PAPER: dict[str, dict[str, tuple[float | None, float | None, float | None]]] = {
    "class": {
        "fedavg": (1.25, 2.10, 5.01),
        "fedavgm": (1.50, 2.51, 6.01),
        "fedasync": (None, 2.17, 1.32),
        "fedbuff": (1.58, 1.39, 1.43),
        "fedcompass": (1.00, 1.00, 1.00),
        "fedcompass+M": (1.18, 0.99, 0.81),
        "fedcompass+N": (1.44, 1.28, 0.92),
    },
    "dirichlet": {
        "fedavg": (1.18, 2.44, 5.68),
        "fedavgm": (1.22, 2.45, 5.83),
        "fedasync": (None, 2.28, 1.29),
        "fedbuff": (1.81, 1.51, 1.49),
        "fedcompass": (1.00, 1.00, 1.00),
        "fedcompass+M": (0.93, 0.91, 0.88),
        "fedcompass+N": (0.99, 1.12, 0.95),
    },
}


def run_setting(partition: str, speed: str, out: Path, jobs: int, seeds: int) -> list[RunRecord]:
    """Every algorithm in one setting."""
    sets = [f"data.partition={PARTITIONS[partition]}", f"world.seconds_per_step={SPEEDS[speed]}"]
    asynchronous = load_recipe(RECIPE, sets=sets)
    synchronous = load_recipe(RECIPE, sets=[*sets, f"until={{tasks: {ROUNDS_OF_TASKS}}}"])
    place = out / f"{partition}-{speed}"
    others = [label for label in asynchronous.algorithms if label not in SYNCHRONOUS]
    planned = plan(synchronous, SYNCHRONOUS, seeds, place) + plan(asynchronous, others, seeds, place)
    return run(planned, jobs, place.name)


def side_by_side(tables: Tables) -> Iterator[str]:
    """Ours / the paper's relative times as Markdown."""
    yield "| partition | algorithm | " + " | ".join(SPEEDS) + " |"
    yield "|---|---|" + "---|" * len(SPEEDS)
    for partition, rows in PAPER.items():
        for label, paper in rows.items():
            cells = []
            for speed, theirs in zip(SPEEDS, paper, strict=True):
                row = next(r for r in tables[partition, speed] if r.label == label)
                cells.append(f"{times(row.relative)} / {times(theirs)}")
            yield f"| {partition} | {label} | " + " | ".join(cells) + " |"


def agreement(tables: Tables, records: Records, target: float) -> Iterator[str]:
    """The pairs the paper separates by more than 1.3x: does our order agree?"""
    orders = Orders()
    for partition, rows in PAPER.items():
        for column, speed in enumerate(SPEEDS):
            paper = {label: theirs[column] for label, theirs in rows.items()}
            setting = partition, speed
            orders.add(", ".join(setting), paper, tables[setting], records[setting], target)
    return orders.lines()


def main() -> None:
    """Run all settings and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/table1"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--targets", type=float, nargs="+", default=[0.60, 0.65])
    options = parser.parse_args()
    began = time.monotonic()
    records: Records = {}
    for partition in PARTITIONS:
        for speed in SPEEDS:
            records[partition, speed] = run_setting(
                partition, speed, options.out, options.jobs, options.seeds
            )
    wall, cpu = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = []
    for target in options.targets:
        full = {k: make_table(r, target=target, baseline="fedcompass") for k, r in records.items()}
        tables: Tables = {k: table.rows for k, table in full.items()}
        lines += [f"## Relative time to {100 * target:g} %: here / the paper", "", *side_by_side(tables), ""]
        lines += [*agreement(tables, records, target), ""]
        for (partition, speed), table in full.items():
            lines += [f"### {partition}, {speed}, target {100 * target:g} %", "", to_markdown(table), ""]
    lines += [f"Took {wall / 60:.0f} minutes, {(cpu.ru_utime + cpu.ru_stime) / 60:.0f} of a processor."]
    text = "\n".join(lines)
    (options.out / "table1.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
