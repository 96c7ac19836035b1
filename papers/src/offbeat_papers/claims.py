"""All judged claims as a table: of the page of claims, and of the dataset."""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from math import exp, isfinite
from pathlib import Path
from statistics import median

from offbeat.report.statistics import CONFIDENCE
from offbeat.runs.csv_text import csv_text
from offbeat.verdicts.verdict import Verdict
from offbeat_papers.arm_rows import ItemRows
from offbeat_papers.experiments import JudgedExperiment
from offbeat_papers.judge import JudgedClaim
from offbeat_papers.paper_page import OURS
from offbeat_papers.provenance import MARK, is_early, uncommitted
from offbeat_papers.study import COSTS
from offbeat_papers.texts import (
    ASKED,
    Grid,
    claim_name,
    margin_text,
    markdown,
    mean_effect,
    paper_effect,
    reached_text,
    seeds_text,
)

_NOT_ASKED = (Verdict.NOT_RUN, Verdict.NO_REAL_DATA)

LEGEND = (
    "- **in the paper, here**: for a time, how many times as long the other method takes; for an accuracy, "
    "how many points the first method is ahead. In the paper: the median over the claim's pairs, and the "
    "least and the largest. Here: the mean over the pairs, with its 95 % interval by Welch's t (Student's "
    "t for unequal variances). “∞”: the other method never reaches the target. “so in 2 of 9”: the paper's "
    "own numbers are as it claims in two of nine pairs. “–”: there is no number.\n"
    "- **(here 75 %)** in a title: the target of our runs, which are smaller than the paper's.\n"
    "- **(fedasmu-DA against fedavg)** in a claim: the labels that the claim compares. A label is an "
    "algorithm with its options: with q-0.05, Q_min/Q_max is 0.05; with tmax-4, the period is T_max/4. The "
    "study's file has the options.\n"
    "- **asked**: the question that the claim's words ask. “on average” is about the mean over pairs, and "
    "“every pair”, “most pairs” and “some pair” are about single pairs. “by more than” and “at most … "
    "behind” are the claim's margin.\n"
    "- **seeds**: the seeds of the last look. “p least at 3”: an earlier look had the least p-value, and "
    "counts.\n"
    "- **before the rule**: how many of the claim's runs were made before the rule of the verdicts was "
    "frozen. A verdict on such runs is exploratory.\n"
    "- **verdict**: by [the rule](studies.md#when-a-claim-holds). An interval can leave out 1x where the "
    "verdict is “undecided”: the question is about single pairs, there is a margin, or the p-value is too "
    "large after the adjustment for looks and for all claims of the paper. An interval can have 1x in it "
    "where the verdict is “held”: an earlier look decided, and later seeds do not take a verdict back; or "
    f"the claim has a margin. {MARK}: some of the runs are from commits that nobody can check out."
)
"""What the columns of the table mean."""


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


def claim_grid(judged: Sequence[JudgedExperiment]) -> Grid:
    """A row for each distinct claim, with a link to its experiment on the paper's page."""
    heads = [
        "paper", "experiment", "claim", "in the paper", "here", "asked", "seeds", "before the rule",
        "verdict",
    ]  # fmt: skip
    return [heads, *(_cells(each, claim) for each, claim in distinct_claims(judged))]


def _cells(each: JudgedExperiment, claim: JudgedClaim) -> list[str]:
    paper, _, name = each.experiment.name.partition("/")
    marked = uncommitted(row.commit for row in claim.runs) > 0
    rows = claim.measured.rows
    says = f"{rows.item.title}: {claim_name(rows, claim)}".removeprefix(OURS).replace(f": {OURS}", ": ")
    return [
        paper, f"[{name}](papers/{paper}.md#{name})", says,
        paper_effect(rows, claim), mean_effect(rows, claim),
        ", ".join(filter(None, [ASKED[claim.question], margin_text(rows, claim)])), seeds_text(claim),
        f"{early_runs(claim)} of {len(claim.runs)}",
        f"{claim.verdict.value}{f' {MARK}' * marked}",
    ]  # fmt: skip


def render_claims(
    judged: Sequence[JudgedExperiment], findings: str = "findings.md", images: str = "images"
) -> str:
    """The page of all claims as Markdown.

    Args:
        judged: The experiments.
        findings: File of the page of findings, as this page names it.
        images: Folder of the figures, as this page names it.
    """
    parts = [
        "# All claims",
        "On this page you find each claim of the four papers that our runs have judged, with the paper's "
        "effect and ours. Claims that compare the same numbers have one row. Click a column's head to "
        "sort, and type to filter. The paper's page has the claim's pairs, its runs and the command that "
        f"repeats the runs. `offbeat reproduce --findings docs/{findings}` writes this page.",
        LEGEND,
        markdown(claim_grid(judged)),
        "## Decided claims by effect",
        f"![Decided claims of times, with intervals]({images}/findings_claims.png)",
        f"![Decided claims of accuracies, with intervals]({images}/findings_accuracies.png)",
        "The figures have the papers' decided claims of costs and of accuracies, without those of gains and "
        "of losses. A large effect is decided more easily than a small one, so these claims' effects are "
        "larger than those of all claims. A line is the mean over the claim's pairs with its 95 % interval. "
        "Green is held, red is not held. A claim with a margin can be green on the left of the dashed line, "
        "and red on its right.",
        "## Where to go on",
        f"- [Findings in short]({findings}): what follows from these claims.\n"
        "- [The dataset](studies.md#the-dataset): the same table as CSV, `claims.csv`, and all runs.",
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"
