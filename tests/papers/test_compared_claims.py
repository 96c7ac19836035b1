"""A comparison and a study judge the same numbers alike."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

from offbeat.report import Claim, findings
from offbeat.verdicts.verdict import Verdict
from offbeat_papers.arm_rows import item_rows
from offbeat_papers.cells import study_cells
from offbeat_papers.judge import judge_items
from offbeat_papers.load import make_study
from offbeat_papers.rows import ResultRow, Results
from tests.papers.study_files import DOCUMENT, row
from tests.report.report_fakes import FakeRun, evaluation

LABELS = {"a": "fedavg", "b": "fedbuff", "c": "fedprox"}
Numbers = dict[str, dict[int, tuple[float, float, float]]]
"""By label and seed the level of the accuracy, its change and the level of the loss."""


def drawn_numbers(rng: random.Random) -> Numbers:
    """Three labels with two to eight seeds, some of which may be missing."""
    seeds, width = rng.choice([2, 3, 4, 5, 8]), rng.choice([0.0005, 0.02])
    shared = [rng.gauss(0.5, 0.05) for _ in range(seeds)]
    found: Numbers = {}
    for label in LABELS:
        effect = rng.choice([0.0, 0.0, 0.04])
        found[label] = {
            seed: (round(base + effect + rng.gauss(0, width), 4), round(rng.uniform(0.01, 0.02) + effect, 4),
                   round(base - effect + rng.gauss(0, width), 4))
            for seed, base in enumerate(shared) if rng.random() < 0.99
        }  # fmt: skip
    return found


def drawn_claims(rng: random.Random) -> list[dict[str, Any]]:
    claims = []
    for number in range(rng.randint(1, 5)):
        better, *than = rng.sample([*LABELS], rng.randint(2, 3))
        by = rng.choice(["accuracy", "change", "loss"])
        claims.append({"says": f"claim {number}", "better": better, "than": than, "by": by})
    return claims


def compared(numbers: Numbers, claims: list[dict[str, Any]], planned: int) -> dict[str, Verdict]:
    """The verdicts of a comparison whose recipe plans some seeds."""
    groups = {
        label: [
            FakeRun(
                label, seed, recipe={"seeds": planned}, duration=10.0,
                evaluations=[evaluation(8.0 + k, level + (k - 0.5) * change, loss=loss) for k in (0, 1)],
            )
            for seed, (level, change, loss) in own.items()
        ]
        for label, own in numbers.items()
    }  # fmt: skip
    return {found.claim.says: found.verdict for found in findings(groups, [Claim(**each) for each in claims])}


class KnownRows(Results):
    """Rows that are in memory."""

    def __init__(self, rows: list[ResultRow]) -> None:
        super().__init__(Path("nowhere"))
        self._rows = rows

    def _read_rows(self, study: str) -> list[ResultRow]:
        return self._rows


def studied(numbers: Numbers, claims: list[dict[str, Any]], planned: int) -> dict[str, Verdict]:
    """The verdicts of a study of one column with the same numbers in its rows."""
    algorithms = {label: {"name": name, "steps": 2} for label, name in LABELS.items()}
    algorithms["b"] |= {"size": 2}
    table = {"title": "Table 1", "shows": "level", "metric": "accuracy", "claims": claims}
    study = make_study("p/s", {
        **DOCUMENT, "columns": {"one": {}}, "sizes": {"laptop": {}}, "items": {"table-1": table},
        "recipe": {**DOCUMENT["recipe"], "algorithms": algorithms, "seeds": planned},
    })  # fmt: skip
    rows = []
    for cell in study_cells(study, "laptop", least_seeds=8):
        if cell.seed in numbers[cell.label]:
            accuracy, change, loss = numbers[cell.label][cell.seed]
            values = {"level": {"accuracy": accuracy, "loss": loss}, "change": {"accuracy": change}}
            rows.append(row(cell.digest, label=cell.label, seed=cell.seed, **values))
    (judged,) = judge_items([item_rows(study, "table-1", "laptop", KnownRows(rows))])
    return {claim.claim.says: claim.verdict for claim in judged.claims}


def test_what_a_study_leaves_undecided_a_comparison_never_calls_held() -> None:
    rng, seen = random.Random(7), Counter[Verdict]()
    for _ in range(60):
        numbers, claims, planned = drawn_numbers(rng), drawn_claims(rng), rng.choice([1, 3, 5])
        here = compared(numbers, claims, planned)
        there = studied(numbers, claims, planned)
        for says, verdict in here.items():
            early = there[says] == Verdict.NOT_RUN  # a comparison calls that undecided: it has runs
            assert verdict == (Verdict.UNDECIDED if early else there[says])
        seen.update(here.values())
    assert min(seen[each] for each in (Verdict.HELD, Verdict.NOT_HELD, Verdict.UNDECIDED)) > 3
    assert seen[Verdict.NO_DIFFERENCE]
