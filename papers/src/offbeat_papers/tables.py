"""The tables of experiments, claims, ranks and runs that the documentation's site shows, made from rows."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from offbeat.runs.csv_text import csv_text
from offbeat.verdicts.verdict import Verdict
from offbeat_papers.arm_rows import Arm, ItemRows
from offbeat_papers.claims import early_runs, write_claims
from offbeat_papers.experiments import JudgedExperiment, load_experiments, rows_of
from offbeat_papers.judge import JudgedClaim, JudgedItem
from offbeat_papers.leaderboard.tables import board_grid, rank_grid, ranking_grid, world_grid
from offbeat_papers.leaderboard.tune import read_board, read_boards
from offbeat_papers.paper_page import CLAIM_HEADS, claim_row
from offbeat_papers.provenance import MARK, uncommitted
from offbeat_papers.rows import ResultRow, Results
from offbeat_papers.texts import (
    ASKED,
    Grid,
    amount_text,
    detectable_text,
    margin_text,
    pair_counts,
    pair_effects,
    reached_text,
    seeds_text,
)

_UNSHOWN = (Verdict.NOT_HELD, Verdict.NO_DIFFERENCE, Verdict.UNDECIDED)


def experiment_grid(judged: Sequence[JudgedExperiment]) -> Grid:
    """A row for each experiment: its verdict, its claims by verdict, and its runs."""
    return [["paper", "experiment", "verdict", "claims", "runs", "beside it"], *map(_experiment_row, judged)]


def _experiment_row(judged: JudgedExperiment) -> list[str]:
    experiment = judged.experiment
    name = experiment.name.partition("/")[2]
    test = f"`pytest {experiment.test}`" if experiment.test else None
    again = f"the runs of {judged.again.partition('/')[2]} again" if judged.again else None
    commands = " ".join(_command(item) for item in judged.items if not item.claims) or None
    beside = filter(None, [experiment.notes, again, experiment.no_real_data, test, commands])
    return [
        _paper(judged), f"{name}: {experiment.title}", judged.verdict.value, verdict_counts(judged),
        _runs_cell(judged), "; ".join(beside),
    ]  # fmt: skip


def _paper(judged: JudgedExperiment) -> str:
    paper = judged.experiment.paper
    return f"[{load_experiments().papers[paper].name}](papers/{paper}.md)"


def verdict_counts(judged: JudgedExperiment) -> str:
    """An experiment's claims by verdict: "3 held, 1 undecided"."""
    counts = Counter(claim.verdict for item in judged.items for claim in item.claims)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])


def _runs_cell(judged: JudgedExperiment) -> str:
    """Number of an experiment's runs, and of those whose commit cannot be checked out."""
    rows = rows_of(judged.items)
    return "exact" if judged.experiment.test else f"{len(rows)}{_marked(rows)}"


def _marked(rows: Sequence[ResultRow]) -> str:
    number = uncommitted(row.commit for row in rows)
    return f" ({MARK}{number})" if number else ""


def claim_grid(judged: Sequence[JudgedExperiment]) -> Grid:
    """A row for each claim of the papers' experiments, and for each claim of ours about a cause."""
    return [["paper", *CLAIM_HEADS], *_claim_rows(judged)]


def _claim_rows(judged: Sequence[JudgedExperiment]) -> Iterator[list[str]]:
    causes: dict[str, tuple[JudgedExperiment, list[str], JudgedItem]] = {}
    for each in judged:
        name = each.experiment.name.partition("/")[2]
        for item in each.items:
            for claim in item.claims:
                yield [_paper(each), *claim_row(name, item, claim, _details(item, claim))]
        for item in each.causes:
            causes.setdefault(item.rows.full_name, (each, [], item))[1].append(name)
    for each, names, item in causes.values():
        place = f"cause of {', '.join(names)}"
        for claim in item.claims:
            yield [_paper(each), *claim_row(place, item, claim, _details(item, claim))]


def _details(item: JudgedItem, claim: JudgedClaim) -> str:
    """Further details of a claim, folded away."""
    lines = []
    if len(claim.pairs) > 1:
        lines += [f"{ASKED[each]}: {claim.answers[each]}" for each in ("average", "every")]
        if claim.effects:
            lines.append(f"pairs here: {pair_effects(item.rows, claim)}")
    lines.append(f"pairs ahead: {pair_counts(claim)}")
    if margin := margin_text(item.rows, claim):
        lines.append(f"margin: {margin}")
    if reached := reached_text(claim):
        lines.append(f"runs that reached the target: {reached}")
    if shown := detectable_text(item.rows, claim):
        lines.append(f"would have shown: {shown}")
    lines.append(f"runs: {_runs(item, claim)}{_marked(claim.runs)}")
    if claim.runs:
        early = f"{early_runs(claim)} of {len(claim.runs)}"
        lines.append(f"seeds: {seeds_text(claim)}; runs from before the rule: {early}")
    lines += _beside(item, claim)
    lines.append(_command(item))
    return f"<details><summary>more</summary>{'<br>'.join(lines)}</details>"


def _runs(item: JudgedItem, claim: JudgedClaim) -> str:
    """Size and seeds of a claim: of those there are, as many as the last look has."""
    most = max((len(pair.seeds) for pair in claim.pairs), default=0)
    if not most:
        return "none"
    used = len(claim.seeds)
    return f"{item.rows.size}, {used} seeds" + (f" (of some pairs {most})" if most > used else "")


def _beside(item: JudgedItem, claim: JudgedClaim) -> list[str]:
    study = item.rows.study
    not_here = study.sizes[item.rows.size].not_here if not item.rows.made else None
    told = study.no_real_data if not (not_here or "").startswith(study.no_real_data or "") else None
    cause = claim.claim.cause if claim.verdict in _UNSHOWN else None
    return [escape(text, quote=False) for text in (cause, item.rows.item.notes, told, not_here) if text]


def _command(item: JudgedItem) -> str:
    size = "" if item.rows.size == "laptop" else f" --scale {item.rows.size}"
    return f"`offbeat reproduce {item.rows.full_name}{size}`"


def run_grid(items: Mapping[str, ItemRows]) -> Grid:
    """A row for each label in each setting of some items' studies: its runs, and their means.

    Args:
        items: The items by any name; an arm that several have is listed once.
    """
    arms: dict[tuple[str, str, Arm], ItemRows] = {}
    for rows in items.values():
        for arm, runs in rows.runs.items():
            if runs:
                arms.setdefault((rows.study.name, rows.size, arm), rows)
    heads = ["study", "size", "setting", "label", "runs", "target", "time to the target", "best", "final"]
    return [heads, *(_run_row(rows, arm) for (_, _, arm), rows in arms.items())]


def _run_row(rows: ItemRows, arm: Arm) -> list[str]:
    label, column = arm
    target = rows.targets.get(column)
    return [
        rows.study.name, rows.size, column, label, str(len(rows.runs[arm])),
        "" if target is None else rows.measure.value_text(target),
        *(amount_text(rows, arm, by) for by in ("time", "best", "final")),
    ]  # fmt: skip


def site_tables(results: Results, judged: Sequence[JudgedExperiment]) -> dict[str, Grid]:
    """The tables of the site by name, with cells in Markdown.

    Args:
        results: Where the rows are.
        judged: The experiments by these rows.
    """
    items = {item.rows.full_name: item.rows for each in judged for item in (*each.items, *each.causes)}
    boards = read_boards(read_board()["data"], results.folder)
    return {
        "experiments": experiment_grid(judged),
        "claims": claim_grid(judged),
        "worlds": world_grid(),
        "rankings": ranking_grid(boards),
        "ranks": rank_grid(boards),
        "leaderboard": board_grid(boards),
        "runs": run_grid(items),
    }


def write_csv_files(tables: Mapping[str, Grid], judged: Sequence[JudgedExperiment], folder: Path) -> None:
    """Write the tables of the site as CSV files; that of claims is the dataset's, which has more columns."""
    for name, grid in tables.items():
        path = folder / f"{name}.csv"
        if name == "claims":
            write_claims(judged, path)
        else:
            text = csv_text([_plain(cell) for cell in row] for row in grid)
            path.write_text(text, encoding="utf-8", newline="")


def _plain(cell: str) -> str:
    """A cell without its links, its bold type and its code marks."""
    return re.sub(r"\*\*|`", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell))
