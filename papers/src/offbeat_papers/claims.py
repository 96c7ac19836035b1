"""All judged claims as the dataset has them, and the distinct ones among them."""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from math import exp, isfinite
from pathlib import Path
from statistics import median

from offbeat.report.seed_statistics import CONFIDENCE
from offbeat.runs.csv_text import csv_text
from offbeat.verdicts.verdict import Verdict
from offbeat_papers.arm_rows import ItemRows
from offbeat_papers.experiments import JudgedExperiment
from offbeat_papers.judge import JudgedClaim
from offbeat_papers.paper_page import OURS
from offbeat_papers.provenance import is_early, uncommitted
from offbeat_papers.study import COSTS
from offbeat_papers.texts import claim_name, reached_text

_NOT_ASKED = (Verdict.NOT_RUN, Verdict.NO_REAL_DATA)


@dataclass(frozen=True)
class ClaimRow:
    """A judged claim, as the dataset has it; `schema.CLAIM_FIELDS` says what each column is."""

    paper: str
    experiment: str
    item: str
    size: str
    number: int
    explains: bool
    claim: str
    quote: str
    by: str
    question: str
    margin: float
    pairs: int
    seeds: int
    least_p_at: int | None
    effect: float | None
    low: float | None
    high: float | None
    paper_effect: float | None
    on_average: str
    every_pair: str
    verdict: str
    reached: str
    runs: int
    early_runs: int
    uncommitted_runs: int


def claim_rows(judged: Sequence[JudgedExperiment]) -> Iterator[ClaimRow]:
    """All claims of experiments and of their causes, each claim of an item once."""
    seen: set[tuple[str, int]] = set()
    for each in judged:
        for explains, items in ((False, each.items), (True, each.causes)):
            for item in items:
                for number, claim in enumerate(item.claims, 1):
                    if (place := (item.rows.full_name, number)) not in seen:
                        seen.add(place)
                        yield _row(each, item.rows, number, claim, explains)


def _row(each: JudgedExperiment, rows: ItemRows, number: int, claim: JudgedClaim, explains: bool) -> ClaimRow:
    effect = claim.last.effect if claim.last is not None and claim.effects else None
    ours = None if effect is None else (effect.mean, *effect.interval(CONFIDENCE))
    mean, low, high = (None if ours is None else _amount(claim, value) for value in ours or (None,) * 3)
    papers = [pair.paper for pair in claim.pairs if pair.paper is not None]
    return ClaimRow(
        each.experiment.paper, each.experiment.name.partition("/")[2], rows.name, rows.size, number, explains,
        claim_name(rows, claim).removeprefix(OURS), claim.claim.quote or "", claim.by, claim.question,
        claim.claim.margin, len(claim.pairs), len(claim.seeds), claim.least_p_at, mean, low, high,
        _amount(claim, median(papers)) if papers else None,
        claim.answers["average"].value, claim.answers["every"].value, claim.verdict.value,
        reached_text(claim), len(claim.runs), early_runs(claim),
        uncommitted(row.commit for row in claim.runs),
    )  # fmt: skip


def early_runs(claim: JudgedClaim) -> int:
    """Number of a claim's runs from before the rule of verdicts was frozen, or of unknown age."""
    return sum(is_early(row.commit) for row in claim.runs)


def _amount(claim: JudgedClaim, value: float | None) -> float | None:
    """An advantage as the dataset has it: a ratio of costs, else a difference; six digits."""
    if value is None or not isfinite(value):
        return None
    return float(f"{exp(value) if claim.by in COSTS else value:.6g}")


def write_claims(judged: Sequence[JudgedExperiment], path: Path) -> Path:
    """Write all claims as CSV; returns the path."""
    heads = [field.name for field in fields(ClaimRow)]
    text = csv_text([heads, *map(astuple, claim_rows(judged))])
    path.write_text(text, encoding="utf-8", newline="")
    return path


def distinct_claims(judged: Sequence[JudgedExperiment]) -> list[tuple[JudgedExperiment, JudgedClaim]]:
    """The papers' claims that have enough runs on real data; claims that compare the same numbers once."""
    asked = [
        (each, claim)
        for each in judged
        if each.experiment.no_real_data is None
        for item in each.items
        for claim in item.claims
        if claim.verdict not in _NOT_ASKED
    ]
    return list({claim.measured.asked: (each, claim) for each, claim in asked}.values())
