"""What the benchmarks that repeat a paper's table share: running them, and comparing two orders."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from offbeat.recipes.compare import PlannedRun, RunProgress, compare
from offbeat.report import TableRow
from offbeat.runs.record import RunRecord

NEVER = float("inf")
APART = 1.3  # pairs that the paper separates by more than this are compared


def run(planned: Sequence[PlannedRun], jobs: int, name: str) -> list[RunRecord]:
    """Run what is not there yet, so many at a time, and say what is over."""
    began, over = time.monotonic(), 0

    def watch(report: RunProgress) -> None:
        nonlocal over
        if report.finished:
            over += 1
            spent = time.monotonic() - began
            print(f"{name} {over}/{len(planned)} {report.name}: {spent:.0f} s", flush=True)

    return compare(planned, jobs, watch)


def first_time(record: RunRecord, target: float) -> float:
    """Virtual seconds of the first evaluation at the target or above."""
    return next((m.t for m in record.evaluations() if (m.accuracy or 0) >= target), NEVER)


def times(x: float | None) -> str:
    """A relative time as the tables write it."""
    return "-" if x is None or x == NEVER else f"{x:.2f}x"


@dataclass
class Orders:
    """Does our order agree in the pairs that the paper separates, over all seeds and seed by seed?"""

    agree: int = 0
    seeds_agree: int = 0
    seeds: int = 0
    others: list[str] = field(default_factory=list)

    def add(
        self,
        setting: str,
        paper: Mapping[str, float | None],
        rows: Sequence[TableRow],
        records: Sequence[RunRecord],
        target: float,
    ) -> None:
        """Compare one setting; `paper` has times by label, None for one that never gets there."""
        ours = {row.label: row.relative or NEVER for row in rows}
        first = {(r.label, r.seed): first_time(r, target) for r in records}
        for a, b in combinations([label for label in paper if label in ours], 2):
            x, y = (paper[label] or NEVER for label in (a, b))
            if max(x, y) <= APART * min(x, y):
                continue
            a, b, x, y = (a, b, x, y) if x < y else (b, a, y, x)  # a is faster in the paper
            pairs = [(first[a, seed], first[b, seed]) for label, seed in first if label == a]
            agreeing = sum(s < t for s, t in pairs)
            self.seeds_agree += agreeing
            self.seeds += sum(s != t for s, t in pairs)
            if ours[a] < ours[b]:
                self.agree += 1
            else:
                self.others.append(
                    f"{setting}: {a} {times(x)} before {b} {times(y)} in the paper, "
                    f"{times(ours[a])} and {times(ours[b])} here; by seed {agreeing} of {len(pairs)} agree"
                )

    def lines(self) -> Iterator[str]:
        """The result as Markdown."""
        pairs = self.agree + len(self.others)
        yield f"{self.agree} of {pairs} pairs that the paper separates by more than {APART}x have its order;"
        yield f"seed by seed, {self.seeds_agree} of {self.seeds}. The other pairs:"
        yield ""
        yield from (f"- {line}" for line in self.others)
