"""The answers to a family's claims, by the second study's rule: six levels, one look at all seeds.

python papers/families/answers.py papers/families/cached.yaml --results papers/families/results
"""

from collections.abc import Iterator
from math import exp
from pathlib import Path
from typing import Annotated

import typer

from offbeat_papers.arm_rows import item_rows
from offbeat_papers.cells import study_cells
from offbeat_papers.claim_pairs import measure_claim
from offbeat_papers.load import load_study
from offbeat_papers.replication.rule import FreshClaim, answer_family, mean_effect, p_value
from offbeat_papers.rows import Results
from offbeat_papers.study import COSTS


def claims(path: Path, results: Path) -> Iterator[tuple[str, bool, FreshClaim]]:
    """Each claim of a study: what it says, whether it is about a cost, and what the rule sees of it."""
    study = load_study(path)
    cells = study_cells(study, "laptop")
    for name, item in study.items.items():
        rows = item_rows(study, name, "laptop", Results(results), cells)
        for claim in item.claims:
            found = measure_claim(rows, claim)
            pairs = [{s: p.advantages[s] for s in rows.seeds if s in p.advantages} for p in found.pairs]
            sampled = FreshClaim(
                found.asked, pairs, found.question, found.margin, found.matters, seeds=len(rows.seeds)
            )
            yield claim.says, (claim.by or item.shows) in COSTS, sampled


def main(
    study: Path,
    results: Annotated[Path, typer.Option(help="folder of the rows")] = Path(__file__).parent / "results",
) -> None:
    """Print a table of the claims, each with its effect, its interval, its p-value and its answer."""
    found = list(claims(study, results))
    answers = answer_family([claim for _, _, claim in found])
    typer.echo("| claim | advantage | 95 % interval | p | answer |\n|---|---|---|---|---|")
    for says, is_cost, claim in found:
        shown = "| | | |"
        if claim.is_complete:
            effect = mean_effect(claim.pairs)
            numbers = [effect.mean, *effect.interval(0.95)]
            mean, low, high = [f"{exp(x):.2f}x" if is_cost else f"{100 * x:+.1f}" for x in numbers]
            shown = f"| {mean} | {low} to {high} | {p_value(claim):.2g} |"
        typer.echo(f"| {says} {shown} {answers[claim.key]} |")


if __name__ == "__main__":
    typer.run(main)
