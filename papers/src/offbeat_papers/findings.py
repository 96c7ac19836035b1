"""The page of findings in short, and its figures: all numbers are from rows."""

from collections.abc import Sequence
from math import exp, isfinite, log
from pathlib import Path
from statistics import median
from textwrap import fill

import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from offbeat.report.figures import blank_figure, save, style_axes
from offbeat.report.palette import MUTED
from offbeat.report.statistics import CONFIDENCE
from offbeat.verdicts.verdict import Verdict
from offbeat_papers.experiments import JudgedExperiment, judge_experiments, load_experiments
from offbeat_papers.judge import JudgedClaim, JudgedPair
from offbeat_papers.open_claims import larger_grid, open_grid
from offbeat_papers.paper_page import OURS, with_numbers
from offbeat_papers.rows import Results
from offbeat_papers.study import COSTS
from offbeat_papers.texts import Grid, markdown, mean_effect, paper_effect

FIGURES = ("findings_effects.png", "findings_claims.png", "findings_power.png")
"""Files of the figures: the paper's effects and ours, the claims, the effects they could have shown."""
_WIDTH = 120
_DECIDED = (Verdict.HELD, Verdict.NOT_HELD, Verdict.NO_DIFFERENCE)
_NOT_ASKED = (Verdict.NOT_RUN, Verdict.NO_REAL_DATA)
_COLOURS = {
    Verdict.HELD: "#1a7f37", Verdict.NOT_HELD: "#cf222e", Verdict.NO_DIFFERENCE: "#0969da",
}  # fmt: skip
_LARGEST = log(30)
_LABEL_WIDTH = 48
_LINE = 0.17
"""Height of a line of a claim's name in inches."""
_TICKS = (0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 40)
# The two parts of a paper's `gain`.
_GAIN, _ROWS = "**What its gain consists of.**", "**What the rows show.**"
_SHOWN = (1.1, 1.5, 2.0, 4.0)
"""Effects for which the page gives the share of the claims that would have found them."""


class Findings:
    """The rows' findings on the papers together.

    Args:
        judged: The experiments.
    """

    def __init__(self, judged: Sequence[JudgedExperiment]) -> None:
        self.judged = judged
        asked = [
            (each.experiment, claim)
            for each in judged
            if each.experiment.no_real_data is None
            for item in each.items
            for claim in item.claims
            if claim.verdict not in _NOT_ASKED
        ]
        distinct = {claim.measured.key: (experiment, claim) for experiment, claim in asked}.values()
        self.claims = [claim for _, claim in distinct]
        self._of_experiments = distinct

    def grid(self) -> Grid:
        """A row for each claim, with a link to its experiment on the paper's page."""
        rows = [["paper", "experiment", "claim", "in the paper", "here", "verdict"]]
        for experiment, claim in self._of_experiments:
            paper, _, name = experiment.name.partition("/")
            of = claim.measured.rows
            link = f"[{name}](papers/{experiment.paper}.md#{name})"
            says = f"{of.item.title}: {claim.claim.says}".removeprefix(OURS).replace(f": {OURS}", ": ")
            effects = [paper_effect(of, claim), mean_effect(of, claim)]
            rows.append([paper, link, says, *effects, claim.verdict.value])
        return rows

    @property
    def costs(self) -> list[JudgedClaim]:
        """The claims of time and other costs, whose effects are ratios; those of gains are left out."""
        return [claim for claim in self.claims if claim.by in COSTS and not claim.claim.over]

    def pairs(self) -> list[tuple[float, float]]:
        """The paper's effect and ours, in logarithms, of each pair of arms whose cost the paper gives."""
        pairs: dict[object, tuple[float, float]] = {}
        for claim in self.costs:
            for pair in claim.pairs:
                ours = pair.mean(claim.seeds)
                if pair.paper is not None and isfinite(pair.paper) and ours is not None:
                    pairs[_key(claim, pair)] = pair.paper, ours
        return list(pairs.values())

    def detectable(self) -> list[float]:
        """The effect that each claim of a cost would have shown in four of five cases, in logarithms."""
        sizes = [claim.last.detectable(claim.question) for claim in self.costs if claim.last is not None]
        return sorted(size for size in sizes if size is not None and size > 0)


def _key(claim: JudgedClaim, pair: JudgedPair) -> tuple[object, ...]:
    return claim.measured.rows.study.name, claim.by, pair.better, pair.than


def render_findings(results: Results, images: str = "images") -> str:
    """The page as Markdown.

    Args:
        results: Where the rows are.
        images: Folder of the figures, as the page names it.
    """
    findings = Findings(judge_experiments(results))
    papers = load_experiments().papers
    pairs, sizes, claims = findings.pairs(), findings.detectable(), findings.claims
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in Verdict}
    same = sum(paper * ours > 0 for paper, ours in pairs)
    correlation = float(np.corrcoef(np.array(pairs).T)[0, 1])
    every = sum(claim.answers["every"] == Verdict.HELD for claim in claims if len(claim.pairs) > 1)
    several = sum(len(claim.pairs) > 1 for claim in claims)
    with_runs = [each for each in findings.judged if each.runs and each.verdict != Verdict.NO_REAL_DATA]
    sentences = [
        f"Of {len(claims)} distinct claims with enough runs on real data, {counts[Verdict.HELD]} are held, "
        f"{counts[Verdict.NOT_HELD]} are not held, {counts[Verdict.NO_DIFFERENCE]} show no difference, and "
        f"{counts[Verdict.UNDECIDED]} are undecided.",
        f"These claims belong to {sum(each.again is None for each in with_runs)} distinct experiments. "
        f"Another {sum(each.again is not None for each in with_runs)} experiments use the same runs.",
        f"A paper gives times for {len(pairs)} pairs of methods. In {same} of these pairs, our times "
        f"differ in the same direction. The logarithms of the two ratios correlate by {correlation:.2f}.",
        f"The median ratio of these pairs is {exp(median(p for p, _ in pairs)):.2f}x in the papers and "
        f"{exp(median(o for _, o in pairs)):.2f}x here.",
        f"Of {several} claims on several pairs, every single pair is held in {every}. A claim on the mean is "
        "decided far more often.",
    ]
    powers = ", ".join(
        f"{sum(size <= log(effect) for size in sizes) / len(sizes):.0%} would have shown {effect:g}x"
        for effect in _SHOWN
    )
    gains = "\n\n".join(
        f"### {paper.title}\n\n"
        + with_numbers(
            paper.gain.partition(_ROWS)[0].strip().removeprefix(_GAIN).lstrip(),
            [each for each in findings.judged if each.experiment.paper == name],
        )
        for name, paper in papers.items()
        if paper.gain
    )
    effects, forest, power = (f"{images}/{name}" for name in FIGURES)
    parts = [
        "# Findings in short",
        "After this page you can say what our runs show about the claims of four papers on asynchronous "
        "federated learning, and what they cannot show. `offbeat reproduce --findings docs/findings.md` "
        "writes this page and its figures from the rows in `papers/results`.",
        "\n".join(
            fill(f"{k}. {text}", _WIDTH, subsequent_indent="   ") for k, text in enumerate(sentences, 1)
        ),
        "## Effects, the papers' and ours",
        f"![The papers' ratios of times and ours]({effects})",
        "Each point is a pair of methods. Its position is the ratio of their times: how many times as long "
        "the second method takes. On the line, the paper and our runs agree.",
        "## Claims that are decided",
        f"![Claims that are decided, with intervals]({forest})",
        "The figure has each decided claim on a cost. It shows how many times as long the second method "
        "takes, as a mean with its 95 % interval by Welch's t. Green is held, red is not held, blue is no "
        "difference. You can sort and filter [the table of all claims](#all-claims).",
        "## What the runs could show",
        f"![Share of claims by the effect that would have been found]({power})",
        f"The figure says which true effects the runs would have found in four of five cases, at the level "
        f"spent. Of {len(sizes)} claims on a cost: {powers}.",
        "## What each paper's gain consists of",
        gains,
        "## What is open, and what it would cost",
        "An undecided claim gets more seeds in looks at 3, 5, 8 and 10 seeds, and none after that. "
        "`offbeat reproduce PAPER --undecided` makes the runs to the next look. The hours are those of one "
        "processor core, from the rows of like runs.",
        markdown(open_grid(results, findings.judged)).rstrip(),
        "The following sizes were not run. Where the cost is known, it is that of the whole study.",
        markdown(larger_grid()).rstrip(),
        "## Scope, methods, limits",
        "- **Scope.** We repeated the tables and figures of four papers, at a size that two cores finish; "
        "one also with the paper's model, on a GPU. Each study says what is smaller.\n"
        "- **Methods.** Seeds are paired. One rule judges all claims; we simulated the rule and then "
        "froze it. Some rows existed before that, so verdicts on these rows are exploratory.\n"
        "- **What was easy.** The papers print the equations of the algorithms and the numbers of the "
        "tables.\n"
        "- **What was hard.** The papers leave open how many devices train at once, the speeds in "
        "seconds, and the hyper-parameters of the methods that they compare with.\n"
        "- **Limits.** Models are smaller and images are fewer than in the papers. Seeds are few, and "
        "runs end early. The runs come from several kinds of processor; runs of different kinds are never "
        "paired. A run on a GPU does not repeat bit by bit.\n"
        "- **The authors** have not been asked yet.",
        "## All claims",
        "Click a column's head to sort. Each claim has one row. The paper's page has the claim's pairs, its "
        "runs and the command that repeats the runs.",
        markdown(findings.grid()),
        "## Where to go on",
        "- [Do the papers hold?](papers.md): every experiment with its verdict.\n"
        "- [Studies](studies.md#when-a-claim-holds): the rule of the verdicts.\n"
        "- [Leaderboard](leaderboard.md): all algorithms on the same worlds, with the same tuning.",
    ]
    return "\n\n".join(parts) + "\n"


def write_findings(results: Results, page: Path) -> list[Path]:
    """Write the page, and its figures into the folder `images` beside it.

    Args:
        results: Where the rows are.
        page: The page's file.

    Returns:
        The files.
    """
    folder = page.parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    page.write_text(render_findings(results), encoding="utf-8")
    return [page, *draw_findings(judge_experiments(results), folder)]


def draw_findings(judged: Sequence[JudgedExperiment], folder: Path) -> list[Path]:
    """Draw the figures of the page into a folder; returns the files."""
    found = Findings(judged)
    drawn = (_effects(found), _forest(found), _power(found))
    return [save(figure, folder / name) for figure, name in zip(drawn, FIGURES, strict=True)]


def _ratios(*axes: Axis) -> None:
    """Write the ticks of logarithmic axes as ratios."""
    for axis in axes:
        low, high = axis.get_view_interval()
        axis.set_major_locator(FixedLocator([tick for tick in _TICKS if low <= tick <= high]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        axis.set_minor_locator(NullLocator())


def _effects(found: Findings) -> Figure:
    figure = blank_figure(5.2, 4.6)
    ax = figure.subplots()
    style_axes(ax)
    paper, ours = (np.exp(each) for each in np.array(found.pairs()).T)
    ends = [min(paper.min(), ours.min()) / 1.1, max(paper.max(), ours.max()) * 1.1]
    ax.plot(ends, ends, color=MUTED, linewidth=1)
    ax.axhline(1, color=MUTED, linewidth=0.8, linestyle="--")
    ax.axvline(1, color=MUTED, linewidth=0.8, linestyle="--")
    ax.scatter(paper, ours, s=14, alpha=0.5, color="#0969da", linewidths=0)
    ax.set(xscale="log", yscale="log", xlabel="ratio of times in the paper", ylabel="here")
    _ratios(ax.xaxis, ax.yaxis)
    return figure


def _forest(found: Findings) -> Figure:
    decided = [
        (claim, claim.last.effect) for claim in found.costs
        if claim.verdict in _DECIDED and claim.last is not None and claim.last.effect is not None
    ]  # fmt: skip
    decided.sort(key=lambda each: -each[1].mean)
    # A claim's words stand above its interval: the figure is then narrow enough to be read on a phone.
    names = [_named(claim) for claim, _ in decided]
    heights = [name.count("\n") + 2 for name in names]
    figure = blank_figure(4.1, 0.6 + _LINE * sum(heights))
    ax = figure.subplots()
    style_axes(ax, grid="x")
    beside = ax.get_yaxis_transform()  # x from 0 to 1 over the axes, y in lines
    for name, y, (claim, effect) in zip(names, np.cumsum(heights) - 0.5, decided, strict=True):
        low, high = (exp(max(-_LARGEST, min(_LARGEST, each))) for each in effect.interval(CONFIDENCE))
        ax.plot([low, high], [y, y], color=_COLOURS[claim.verdict], linewidth=1.5)
        ax.plot([exp(effect.mean)], [y], "o", color=_COLOURS[claim.verdict], markersize=5)
        ax.text(
            0.02, y - 0.4, name, transform=beside, fontsize=9, va="bottom", linespacing=1.1,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    ax.axvline(1, color=MUTED, linewidth=0.8, linestyle="--")
    ax.set_yticks([])
    ax.set_ylim(sum(heights) + 0.5, 0)
    ax.set(xscale="log", xlabel="times as long the other takes")
    _ratios(ax.xaxis)
    return figure


def _named(claim: JudgedClaim) -> str:
    rows = claim.measured.rows
    says = f"{rows.full_name} #{list(rows.item.claims).index(claim.claim) + 1}: {claim.claim.says}"
    return fill(says, _LABEL_WIDTH, break_on_hyphens=False)


def _power(found: Findings) -> Figure:
    sizes = np.exp(found.detectable())
    figure = blank_figure(5.2, 3.4)
    ax = figure.subplots()
    style_axes(ax)
    ax.step(sizes, 100 * np.arange(1, len(sizes) + 1) / len(sizes), where="post", color="#0969da")
    ax.set(xscale="log", xlim=(1, exp(_LARGEST)), ylim=(0, 100))
    ax.set(xlabel="effect on a cost", ylabel="% of claims that would show it")
    _ratios(ax.xaxis)
    return figure
