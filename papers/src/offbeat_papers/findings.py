"""The page of findings in short, the page of all claims beside it, and their figures: all from rows."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from statistics import median
from textwrap import fill

from offbeat.verdicts.verdict import Verdict
from offbeat_papers.claims import early_runs, render_claims
from offbeat_papers.experiments import JudgedExperiment, Paper, judge_experiments, load_experiments
from offbeat_papers.findings_figures import FIGURES, draw_findings
from offbeat_papers.findings_numbers import Findings
from offbeat_papers.open_claims import open_grid
from offbeat_papers.paper_page import with_numbers
from offbeat_papers.provenance import MARK
from offbeat_papers.rows import Results
from offbeat_papers.texts import Grid, markdown

CLAIMS = "claims.md"
"""File of the page of all claims, beside the page of findings."""
_WIDTH = 120
_SHOWN = (1.1, 1.5, 2.0, 4.0)
"""Effects for which the page gives the share of the claims that would have found them."""


def render_findings(results: Results, images: str = "images") -> str:
    """The page as Markdown.

    Args:
        results: Where the rows are.
        images: Folder of the figures, as the page names it.
    """
    found = Findings(judge_experiments(results))
    effects, every, _, _, power = (f"{images}/{name}" for name in FIGURES)
    parts = [
        "# Findings in short",
        "After this page you can say what our runs show about the claims of four papers on asynchronous "
        "federated learning, and what they cannot show. `offbeat reproduce --findings docs/findings.md` "
        "writes this page, its figures and [all claims](claims.md) from the rows in `papers/results`.",
        _numbered(_sentences(found)),
        "“Held” and “not held” are verdicts of [one rule](studies.md#when-a-claim-holds) with an error "
        "level of 5 % for the claims of a paper together. “Undecided” means that the runs do not tell. "
        "“(held at 3 seeds)” means that a look at 3 seeds decided, and that the effect of all seeds could be "
        "none. "
        f"{MARK} marks an effect some of whose runs are from commits that nobody can check out.",
        "## Effects, the papers' and ours",
        f"![The papers' effects and ours, of times and of accuracies]({effects})",
        "Each point is a pair of methods in one setting. On the solid line, the paper and our runs agree. "
        "A point has the paper's direction if it is in the upper right or lower left quarter. "
        + _never(found),
        markdown(_effects_grid(found)),
        "## All claims",
        f"![All claims of times and of accuracies, with intervals]({every})",
        "Each line is a claim: the mean effect over its pairs, with its 95 % interval. Claims of gains and "
        "of losses are left out. [All claims](claims.md) has a table of them, and the decided ones by name.",
        "## What the runs could show",
        f"![Share of claims by the effect that would have been found]({power})",
        _power_text(found),
        "## What each paper's gain consists of",
        _gains(found),
        "## What is open, and what it would cost",
        "An undecided claim gets more seeds in looks at 3, 5, 8 and 10 seeds, and none after that. "
        "`offbeat reproduce PAPER --undecided` makes the runs to the next look. The table also counts the "
        "claims of our own studies of causes. More seeds do not decide a claim if its runs end before the "
        "target. Such claims need longer runs: runs of twice the length cost about twice the hours that the "
        "table has for them. `--unpaired` makes the runs for claims that wait for runs on one kind of "
        "processor. The hours are those of one processor core, from the rows of like runs.",
        markdown(open_grid(results, found.judged)),
        "[Sizes that were not run](papers.md#sizes-that-were-not-run), such as those of the papers, take "
        "from 25 hours of a core to 170,000, or need data that cannot be downloaded here.",
        "## Scope, methods, limits",
        _SCOPE.format(early=_early_text(found)),
        "## Where to go on",
        "- [All claims](claims.md): each with its effect, its interval and its verdict.\n"
        "- [Do the papers hold?](papers.md): every experiment with its verdict.\n"
        "- [Studies](studies.md#when-a-claim-holds): the rule of the verdicts.\n"
        "- [Leaderboard](leaderboard.md): all algorithms on the same worlds, with the same tuning.",
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


_SCOPE = (
    "- **Scope.** We repeated the tables and figures of four papers, at a size that two cores finish; one "
    "also with the paper's model, on a GPU. Each study says what is smaller.\n"
    "- **Methods.** Two methods are compared on runs of the same seed. One rule judges all claims; we "
    "simulated the rule and then froze it. {early}\n"
    "- **What was easy.** The papers print the equations of the algorithms and the numbers of the tables.\n"
    "- **What was hard.** The papers leave open how many devices train at once, the speeds in seconds, and "
    "the hyper-parameters of the methods that they compare with.\n"
    "- **Limits.** Models are smaller and images are fewer than in the papers. Seeds are few, and runs end "
    "early: many do not reach a target, and then a claim on time says little. The runs come from several "
    "kinds of processor; runs of different kinds are never paired. A run on a GPU does not repeat bit by "
    "bit.\n"
    "- **The authors** have not been asked yet."
)


def _early_text(found: Findings) -> str:
    """How many decided claims rest on runs from before the rule was frozen."""
    decided = [claim for claim in found.claims if claim.verdict in (Verdict.HELD, Verdict.NOT_HELD)]
    early = [early_runs(claim) / len(claim.runs) for claim in decided]
    both = sum(0 < share < 1 for share in early)
    return (
        f"Some runs are older, and verdicts on them are exploratory: of the {len(decided)} decided claims, "
        f"{sum(share == 1 for share in early)} rest on such runs only, {both} on such "
        f"runs and later ones, {sum(share == 0 for share in early)} on later ones only."
    )


def _numbered(sentences: Sequence[str]) -> str:
    return "\n".join(
        fill(f"{k}. {text}", _WIDTH, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False)
        for k, text in enumerate(sentences, 1)
    )


def _sentences(found: Findings) -> list[str]:
    """The counts, and what each paper's claims come to."""
    counts = {verdict: sum(claim.verdict == verdict for claim in found.claims) for verdict in Verdict}
    with_runs = [each for each in found.judged if each.runs and each.verdict != Verdict.NO_REAL_DATA]
    own = [each for each in with_runs if each.again is None]
    again = len(with_runs) - len(own)
    several = [claim for claim in found.claims if len(claim.pairs) > 1]
    every = sum(claim.answers["every"] == Verdict.HELD for claim in several)
    first = (
        f"Of {len(found.claims)} distinct claims with enough runs on real data, {counts[Verdict.HELD]} are "
        f"held, {counts[Verdict.NOT_HELD]} are not held, {counts[Verdict.NO_DIFFERENCE]} show no "
        f"difference, and {counts[Verdict.UNDECIDED]} are undecided. Claims about the same numbers count "
        "once for each question that they ask. The claims belong to "
        f"{len(own)} distinct experiments, of which {_counted(own)}; {again} more experiments use the "
        "same runs. Of "
        f"{len(several)} claims on several pairs, every single pair is held in {every}."
    )
    return [first, *(_told(found, name, paper.finding) for name, paper in load_experiments().papers.items())]


def _counted(experiments: Sequence[JudgedExperiment]) -> str:
    """Experiments by verdict: "6 are not held and 14 are undecided"."""
    counts = Counter(each.verdict for each in experiments)
    return " and ".join(f"{counts[verdict]} are {verdict.value}" for verdict in Verdict if counts[verdict])


def _told(found: Findings, name: str, text: str) -> str:
    """A text of a paper with the numbers of its rows, in one line."""
    own = [each for each in found.judged if each.experiment.paper == name]
    return " ".join(with_numbers(text, own).split())


def _gains(found: Findings) -> str:
    def part(name: str, paper: Paper) -> str:
        own = [each for each in found.judged if each.experiment.paper == name]
        page = f"[What the rows show](papers/{name}.md#what-the-rows-show)."
        return f"### {paper.title}\n\n{with_numbers(paper.gain.strip(), own)}\n\n{page}"

    return "\n\n".join(part(name, paper) for name, paper in load_experiments().papers.items() if paper.gain)


def _effects_grid(found: Findings) -> Grid:
    """By paper the pairs of times and of accuracies: how many have the paper's direction, and the medians."""
    heads = [
        "paper", "pairs of times", "same direction", "median in the paper", "here",
        "pairs of accuracies", "same direction", "median in the paper", "here",
    ]  # fmt: skip
    times, points = found.pairs(found.costs), found.pairs(found.accuracies)
    rows = [
        [paper.title, *_direction(times.get(name, []), _ratio), *_direction(points.get(name, []), _points)]
        for name, paper in load_experiments().papers.items()
        if name in times or name in points
    ]
    return [heads, *rows]


def _direction(pairs: Sequence[tuple[float, float]], text: Callable[[float], str]) -> list[str]:
    if not pairs:
        return ["0", "–", "–", "–"]
    same = sum(paper * ours > 0 for paper, ours in pairs) / len(pairs)
    return [str(len(pairs)), f"{same:.0%}", *(text(median(own)) for own in zip(*pairs, strict=True))]


def _ratio(value: float) -> str:
    return f"{exp(value):.2f}x"


def _points(value: float) -> str:
    return f"{100 * value:+.1f} points"


def _never(found: Findings) -> str:
    return (
        f"The figure leaves out {found.never} pairs of times of which one method never reaches the target "
        "in the paper, the pairs of which the paper gives no numbers, and those of which neither method "
        "reaches the target here."
    )


def _power_text(found: Findings) -> str:
    sizes, looked = found.detectable(), len(found.looked_at)
    if not looked:
        return "No claim on a cost has enough runs yet."
    powers = ", ".join(
        f"{sum(size <= log(effect) for size in sizes) / looked:.0%} would have shown {effect:g}x"
        for effect in _SHOWN
    )
    return (
        "The figure says which true effects the runs would have found in four of five cases, at the level "
        f"spent. Of {looked} claims on a cost, {powers}. For {looked - len(sizes)} claims no such effect "
        "can be given, because too few runs reached the target or all seeds agree. The others need still "
        "larger effects."
    )


def write_findings(results: Results, page: Path) -> list[Path]:
    """Write the page, all claims beside it, and the figures into the folder `images` beside it.

    Args:
        results: Where the rows are.
        page: The page's file.

    Returns:
        The files.
    """
    folder = page.parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    judged = judge_experiments(results)
    claims = page.parent / CLAIMS
    page.write_text(render_findings(results), encoding="utf-8")
    claims.write_text(render_claims(judged, page.name), encoding="utf-8")
    return [page, claims, *draw_findings(Findings(judged), folder)]
