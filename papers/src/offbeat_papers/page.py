"""The page "Do the papers hold?": what follows from all claims, the counts, and what is open."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from offbeat.verdicts.answers import Quantifier
from offbeat.verdicts.verdict import Verdict
from offbeat_papers.experiments import (
    JudgedExperiment,
    Paper,
    judge_experiments,
    load_experiments,
    rows_of,
)
from offbeat_papers.figure import write_figure
from offbeat_papers.findings import effects_grid, never_text, numbered, power_text, scope_text, sentences
from offbeat_papers.findings_figures import FIGURES, draw_findings
from offbeat_papers.findings_numbers import Findings
from offbeat_papers.judge import JudgedClaim
from offbeat_papers.leaderboard.tables import draw, everywhere
from offbeat_papers.leaderboard.tune import read_board, read_boards
from offbeat_papers.load import all_items
from offbeat_papers.open_claims import larger_grid, open_grid
from offbeat_papers.paper_page import IMAGES, figure_name, render_paper, shown_items
from offbeat_papers.provenance import MARK, uncommitted
from offbeat_papers.rows import ResultRow, Results
from offbeat_papers.study import Study
from offbeat_papers.texts import ASKED, Grid, markdown

Items = Mapping[str, tuple[Study, str]]
"""Study and item by full name."""


def write_pages(results: Results, page: Path, items: Items | None = None) -> list[Path]:
    """Write the page, and one of each paper into a folder that is named as the page is, with figures.

    Args:
        results: Where the rows are.
        page: The page's file; a paper's page is `STEM/PAPER.md` beside it. The figures of all claims are in
            `images` beside the page, and those of a paper in `STEM/images`.
        items: As of `judge_experiments`.

    Returns:
        The files.
    """
    known = all_items() if items is None else items
    judged = judge_experiments(results, known)
    folder = page.with_suffix("")
    texts = {page: render_page(results, judged, known, folder.name)}
    images = folder / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    figures = []
    for name, paper in load_experiments().papers.items():
        own = [each for each in judged if each.experiment.paper == name]
        texts[folder / f"{name}.md"] = render_paper(paper, own, page.name)
        rows = [item.rows for item in shown_items(paper, own)]
        figures += [write_figure(each, results, images / figure_name(each)) for each in rows]
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    beside = page.parent / IMAGES
    beside.mkdir(exist_ok=True)
    boards, ranks = everywhere(read_boards(read_board()["data"], results.folder)), beside / "leaderboard.png"
    drawn = [*draw_findings(Findings(judged), beside), *([ranks] if draw(boards, ranks) else [])]
    return [*texts, *filter(None, figures), *drawn]


def render_page(
    results: Results, judged: Sequence[JudgedExperiment], items: Items, folder: str = "papers"
) -> str:
    """The page as Markdown.

    Args:
        results: Where the rows are.
        judged: The experiments.
        items: The items they were judged with.
        folder: Folder of the papers' pages, as this page names it.
    """
    papers = load_experiments().papers
    hours = _hours(results, {study.name for study, _ in items.values()})
    found = Findings(judged)
    effects, every, _, _, power = (f"{IMAGES}/{name}" for name in FIGURES)
    parts = [
        "# Do the papers hold?",
        "After this page you can say what our runs show about the claims of four papers on asynchronous "
        "federated learning, and what they cannot show. `offbeat reproduce --page docs/papers.md` writes "
        "this page and the papers' pages from the rows in `papers/results`.",
        numbered(sentences(found)),
        "“Held” and “not held” are verdicts of [one rule](studies.md#when-a-claim-holds) with an error "
        "level of 5 % for the claims of a paper together. “Undecided” means that the runs do not tell. "
        "“(held at 3 seeds)” means that a look at 3 seeds decided, and that the effect of all seeds could be "
        f"none. {MARK} marks an effect some of whose runs are from commits that nobody can check out.",
        "Each paper has a page: "
        + ", ".join(f"[{paper.name}]({folder}/{name}.md)" for name, paper in papers.items())
        + ". [One table](tables.md) has all claims and experiments.",
        "## In counts",
        markdown(_counts(judged, papers, hours, folder)),
        _distinct_text(judged),
        rows_text(rows_of(item for each in judged for item in (*each.items, *each.causes))),
        "The following table counts claims once that ask the same question about the same numbers, for "
        "example a table and a figure of the same runs. In the last rows, all claims ask one question. The "
        "table leaves out worked examples, and experiments on substitutes for data that are not available.",
        markdown(_claim_counts(judged, papers)),
        "## Effects, the papers' and ours",
        f"![The papers' effects and ours, of times and of accuracies]({effects})",
        "Each point is a pair of methods in one setting. On the solid line, the paper and our runs agree. "
        "A point has the paper's direction if it is in the upper right or lower left quarter. "
        + never_text(found),
        markdown(effects_grid(found)),
        f"![All claims of times and of accuracies, with intervals]({every})",
        "Each line is a claim: the mean effect over its pairs, with its 95 % interval. Claims of gains and "
        "of losses are left out.",
        "## What the runs could show",
        f"![Share of claims by the effect that would have been found]({power})",
        power_text(found),
        "## What is open, and what it would cost",
        "An undecided claim gets more seeds in looks at 3, 5, 8 and 10 seeds, and none after that. "
        "`offbeat reproduce PAPER --undecided` makes the runs to the next look. The table also counts the "
        "claims of our own studies of causes. More seeds do not decide a claim if its runs end before the "
        "target. Such claims need longer runs: runs of twice the length cost about twice the hours that the "
        "table has for them. `--unpaired` makes the runs for claims that wait for runs on one kind of "
        "processor. The hours are those of one processor core, from the rows of like runs.",
        markdown(open_grid(results, judged)),
        "### Sizes that were not run",
        "Where the cost is known, it is that of the whole study.",
        markdown(larger_grid()),
        "## Scope, methods, limits",
        scope_text(found),
        "## Where to go on",
        "- [Claims, leaderboard and runs](tables.md): every number, to sort, to filter and to download.\n"
        "- [Studies](studies.md): the rule of the verdicts, and how to repeat an experiment.",
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _hours(results: Results, studies: Iterable[str]) -> Mapping[str, float]:
    """Processor hours of the rows there are, by paper."""
    hours: defaultdict[str, float] = defaultdict(float)
    for name in studies:
        seconds = sum(row.processor or 0.0 for row in results.all_rows(name))
        hours[name.partition("/")[0]] += seconds / 3600
    return hours


def _counts(
    judged: Sequence[JudgedExperiment],
    papers: Mapping[str, Paper],
    hours: Mapping[str, float],
    folder: str,
) -> Grid:
    def row(title: str, own: Sequence[JudgedExperiment], spent: float) -> list[str]:
        counts = [str(sum(each.verdict == verdict for each in own)) for verdict in Verdict]
        if exact := sum(each.experiment.test is not None for each in own):
            counts[0] += f" ({exact} worked examples)"
        return [title, *counts, str(len(own)), f"{spent:.1f}"]

    alone = [
        each for each in judged if each.again is None and each.runs and each.verdict != Verdict.NO_REAL_DATA
    ]
    by_paper = [
        row(
            f"[{paper.name}]({folder}/{name}.md)",
            [each for each in judged if each.experiment.paper == name],
            hours[name],
        )
        for name, paper in papers.items()
    ]
    heads = ["experiments", *Verdict, "all", "processor hours"]
    return [
        heads,
        *by_paper,
        row("**all**", judged, sum(hours.values())),
        row("distinct, with runs on real data", alone, sum(hours.values())),
    ]


def _distinct_text(judged: Sequence[JudgedExperiment]) -> str:
    """The number of experiments with runs of their own, as a text."""
    run = [each for each in judged if each.runs and each.verdict != Verdict.NO_REAL_DATA]
    own = [each for each in run if each.again is None]
    return (
        f"{len(run)} of the {len(judged)} experiments have runs on real data. {len(run) - len(own)} of these "
        f"use the runs of another experiment, as their rows say. So the page has {len(own)} distinct "
        "experiments."
    )


def rows_text(rows: Sequence[ResultRow]) -> str:
    """The commits and kinds of processor of some runs, as a text."""
    states = Counter(row.commit_state for row in rows)
    kinds = Counter(row.processor_name for row in rows)
    named = ", ".join(f"{number} ran on {escape(kind)}" for kind, number in kinds.most_common())
    return (
        f"Of the {len(rows)} runs, {named}. Runs of different kinds of processor are never paired. "
        f"{uncommitted(row.commit for row in rows)} runs are from commits that nobody can check out. For "
        f"{states['dirty']} of these runs, the checkout had changes that no commit has. For "
        f"{states['missing']} runs, the commit is not in the repository. For {states['unknown']} runs, the "
        "commit is unknown."
    )


def _claim_counts(judged: Sequence[JudgedExperiment], papers: Mapping[str, Paper]) -> Grid:
    """The distinct claims of the papers by verdict; of all also the answers to other questions."""
    claims_of = {
        name: [
            claim
            for each in judged
            if each.experiment.paper == name and each.experiment.no_real_data is None
            for item in each.items
            for claim in item.claims
        ]
        for name in papers
    }
    every = [claim for claims in claims_of.values() for claim in claims]
    rows = [_claim_row(paper.name, claims_of[name]) for name, paper in papers.items()]
    rows.append(_claim_row("**all**", every))
    rows += [_claim_row(f"all, if they spoke of {ASKED[name]}", every, name) for name in _QUESTIONS]
    return [["claims", *Verdict, "distinct", "with those that are said again"], *rows]


_QUESTIONS: tuple[Quantifier, ...] = ("average", "most", "every")


def _claim_row(title: str, claims: Sequence[JudgedClaim], question: Quantifier | None = None) -> list[str]:
    if question is None:
        distinct = {claim.measured.asked: claim for claim in claims}
        verdicts = [claim.verdict for claim in distinct.values()]
    else:
        distinct = {claim.measured.key: claim for claim in claims}
        verdicts = [claim.answers[question] for claim in distinct.values()]
    return [title, *(str(verdicts.count(each)) for each in Verdict), str(len(distinct)), str(len(claims))]
