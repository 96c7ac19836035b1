"""The page "Do the papers hold?": every experiment of the papers with its verdict, from rows alone."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from textwrap import fill

import yaml

from offbeat.recipes.recipe import Section
from offbeat.studies.cells import Cell
from offbeat.studies.judge import JudgedClaim, JudgedItem, item_rows, judge_item, known_cells
from offbeat.studies.load import all_items
from offbeat.studies.rows import Results
from offbeat.studies.study import SIZES, Size, Study
from offbeat.studies.texts import NO_EFFECT, Grid, claim_cells, effect_in_prose, markdown
from offbeat.studies.verdicts import Verdict, experiment_verdict

_HEADS = [
    "experiment, item",
    "the paper says",
    "in the paper",
    "here [95 %]",
    "pairs",
    "runs",
    "verdict",
    "beside it",
    "command",
]
_EFFECT = re.compile(r"\{([+-])([\w-]+)#([1-9]\d*)\.(mean|least|largest)\}")
_WIDTH = 120
OURS = "ours: "
"""What an item and a claim begin with that are not the paper's."""


class PaperExperiment(Section):
    """A table, a figure or a result in the text of a paper.

    Attributes:
        name: "paper/table-1". Its items are those of the paper's studies of this name, or that begin with it
            and a dash.
        title: What it is.
        test: The test that repeats a worked example exactly. None means that there are runs to make.
        no_real_data: Why its data cannot be had: then what stands in for them has no part in its verdict.
            None means that they can.
        notes: What is said beside the verdict.
    """

    name: str
    title: str
    test: str | None = None
    no_real_data: str | None = None
    notes: str | None = None

    @property
    def paper(self) -> str:
        """Short name of its paper."""
        return self.name.partition("/")[0]


class Paper(Section):
    """A paper.

    Attributes:
        title: The paper.
        gain: What its gain consists of, as Markdown. Numbers of ours in it come from rows: "{+item#2.mean}"
            is the effect of the item's second claim, its "mean", or that of the "least" or "largest" pair;
            "-" for "+" where the claimed one is behind.
    """

    title: str
    gain: str = ""

    @property
    def name(self) -> str:
        """Its title without authors and year."""
        return self.title.partition(" (")[0]


class Experiments(Section):
    """The papers and their experiments, in order."""

    papers: dict[str, Paper]
    experiments: list[PaperExperiment]


@dataclass(frozen=True)
class JudgedExperiment:
    """An experiment with its items, each at its largest size that was run, and its verdict.

    Attributes:
        experiment: The experiment.
        items: Its items.
        causes: Items that show why it comes out as it does; its verdict does not rest on them.
        verdict: Its verdict.
    """

    experiment: PaperExperiment
    items: tuple[JudgedItem, ...]
    causes: tuple[JudgedItem, ...]
    verdict: Verdict


def load_experiments() -> Experiments:
    """The experiments that the papers have."""
    text = files("offbeat.studies").joinpath("experiments.yaml").read_text(encoding="utf-8")
    return Experiments.model_validate(yaml.safe_load(text))


def judge_experiments(
    results: Results, items: Mapping[str, tuple[Study, str]] | None = None
) -> list[JudgedExperiment]:
    """Judge all experiments.

    Args:
        results: Where the rows are.
        items: Study and item by full name. None means those of the built-in studies.
    """
    known = all_items() if items is None else items
    cells: dict[str, list[Cell]] = {}
    judged = {}
    for name, (study, item) in known.items():
        size = largest_size(study, results)
        if study.name not in cells:
            cells[study.name] = known_cells(study, size, results)
        judged[name] = judge_item(item_rows(study, item, size, results, cells[study.name]))
    return [_judged(experiment, judged) for experiment in load_experiments().experiments]


def largest_size(study: Study, results: Results) -> Size:
    """The largest size with a row, else the laptop's; rows of "seconds" say nothing of a paper."""
    sizes: list[Size] = [size for size in SIZES if size in study.sizes and size != "seconds"]
    sizes = sizes or list(study.sizes)
    made = {row.size for row in results.rows(study.name).values()}
    return next((size for size in sizes if size in made), sizes[-1])


def _judged(experiment: PaperExperiment, judged: Mapping[str, JudgedItem]) -> JudgedExperiment:
    items = tuple(
        item for name, item in judged.items()
        if name == experiment.name or name.startswith(f"{experiment.name}-")
    )  # fmt: skip
    paper, _, own = experiment.name.partition("/")
    causes = tuple(
        item for name, item in judged.items()
        if name.startswith(f"{paper}/") and own in item.rows.item.explains
    )  # fmt: skip
    claims = [claim.verdict for item in items for claim in item.claims]
    real = [verdict for verdict in claims if verdict != Verdict.NO_REAL_DATA]
    if experiment.test is not None:
        verdict = Verdict.HELD
    elif experiment.no_real_data is not None or (claims and not real):
        verdict = Verdict.NO_REAL_DATA
    else:
        verdict = experiment_verdict(real)
    return JudgedExperiment(experiment, items, causes, verdict)


def render_page(results: Results, items: Mapping[str, tuple[Study, str]] | None = None) -> str:
    """The page as Markdown; arguments as of `judge_experiments`."""
    known = all_items() if items is None else items
    judged = judge_experiments(results, known)
    papers = load_experiments().papers
    parts = [
        "# Do the papers hold?",
        "Every experiment of the four papers, with what it claims, and what its runs show here. "
        "[Studies](studies.md) has the rule by which a claim is held, not held or undecided; a laptop's runs "
        "are smaller than the paper's, as each study says. This page is written by "
        "`offbeat reproduce --page docs/papers.md` from the rows in `studies/results`.",
        "An experiment's verdict stands in its first row, in bold; below it are the claims of its tables "
        "and figures. The effect of a claim is how many times as long the other one takes, or by how much "
        "the first is ahead; of a claim on several pairs, the mean over them with its interval over seeds, "
        "then the median, the least and the largest pair. What begins with *ours* is no claim of the "
        "paper's: it tests why an experiment comes out as it does, and has no part in its verdict.",
        markdown(_counts(judged, papers, _hours(results, {study.name for study, _ in known.values()}))),
        "A claim of several pairs is held only if every pair is, so most of those with many pairs stay "
        "undecided. What the mean over their pairs says is beside their number; the claims of a table and of "
        "the figure of the same runs both count. Left out are the worked examples and what stands in for "
        "data that cannot be had.",
        markdown(_claim_counts(judged, papers)),
    ]
    for name, paper in papers.items():
        own = [each for each in judged if each.experiment.paper == name]
        parts.append(f"## {paper.title}")
        if paper.gain:
            parts.append(with_numbers(paper.gain.strip(), own))
        parts.append(markdown([_HEADS, *_table(own)]))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def with_numbers(text: str, judged: Iterable[JudgedExperiment]) -> str:
    """A text with effects of claims in place of references to them (`Paper.gain`); "–": there is none."""
    items = {item.rows.name: item for each in judged for item in (*each.items, *each.causes)}

    def effect(found: re.Match[str]) -> str:
        sign, name, number, what = found.groups()
        claims = items[name].claims[int(number) - 1 :] if name in items else ()
        return effect_in_prose(items[name].rows, claims[0], what, sign) if claims else NO_EFFECT

    paragraphs = _EFFECT.sub(effect, text).split("\n\n")
    return "\n\n".join(
        fill(each, _WIDTH, break_long_words=False, break_on_hyphens=False) for each in paragraphs
    )


def _hours(results: Results, studies: Iterable[str]) -> Mapping[str, float]:
    """Processor hours of the rows there are, by paper."""
    hours: defaultdict[str, float] = defaultdict(float)
    for name in studies:
        seconds = sum(row.processor or 0.0 for row in results.rows(name).values())
        hours[name.partition("/")[0]] += seconds / 3600
    return hours


def _counts(
    judged: Sequence[JudgedExperiment], papers: Mapping[str, Paper], hours: Mapping[str, float]
) -> Grid:
    def row(title: str, own: Sequence[JudgedExperiment], spent: float) -> list[str]:
        counts = [str(sum(each.verdict == verdict for each in own)) for verdict in Verdict]
        if exact := sum(each.experiment.test is not None for each in own):
            counts[0] += f" ({exact} worked examples)"
        return [title, *counts, str(len(own)), f"{spent:.1f}"]

    by_paper = [
        row(paper.name, [each for each in judged if each.experiment.paper == name], hours[name])
        for name, paper in papers.items()
    ]
    heads = ["experiments", *Verdict, "all", "processor hours"]
    return [heads, *by_paper, row("**all**", judged, sum(hours.values()))]


def _claim_counts(judged: Sequence[JudgedExperiment], papers: Mapping[str, Paper]) -> Grid:
    """The claims of the papers by verdict, and the undecided ones by what their mean says."""

    def row(title: str, claims: Sequence[JudgedClaim]) -> list[str]:
        undecided = [claim for claim in claims if claim.verdict == Verdict.UNDECIDED]
        counts = [sum(claim.verdict == verdict for claim in claims) for verdict in Verdict]
        average = [sum(claim.on_average == verdict for claim in undecided) for verdict in decided]
        rest = len(undecided) - sum(average)
        counts[2:3] = [counts[2], *average, rest]
        return [title, *map(str, counts), str(len(claims))]

    decided = (Verdict.HELD, Verdict.NOT_HELD)
    own = {
        name: [
            claim
            for each in judged
            if each.experiment.paper == name and each.experiment.no_real_data is None
            for item in each.items
            for claim in item.claims
        ]
        for name in papers
    }
    heads = ["claims", "held", "not held", "undecided", "of these on average held", "on average not held"]
    heads += ["neither", "not run", "no real data here", "all"]
    rows = [row(paper.name, own[name]) for name, paper in papers.items()]
    return [heads, *rows, row("**all**", [claim for claims in own.values() for claim in claims])]


def _table(own: Sequence[JudgedExperiment]) -> Iterator[list[str]]:
    """The rows of a paper; a cause of several experiments is told with the first of them."""
    told: dict[str, str] = {}
    for each in own:
        yield from _rows(each)
        for item in each.causes:
            name = item.rows.full_name
            if name in told:
                title = f"{OURS}{item.rows.item.title}"
                yield [
                    title,
                    f"its claims stand with {told[name]}",
                    "",
                    "",
                    "",
                    "",
                    item.verdict.value,
                    "",
                    _command(item),
                ]
            else:
                told[name] = each.experiment.name.partition("/")[2]
                yield from _item_rows(item, OURS)


def _rows(judged: JudgedExperiment) -> Iterator[list[str]]:
    experiment = judged.experiment
    name = f"{experiment.name.partition('/')[2]}: {experiment.title}"
    test = f"`pytest {experiment.test}`" if experiment.test else ""
    beside = "; ".join(filter(None, [experiment.notes, experiment.no_real_data]))
    commands = test or " ".join(_command(item) for item in judged.items if not item.claims)
    exact = "exact" if test else ""
    yield [f"**{name}**", "", "", "", "", exact, f"**{judged.verdict}**", beside, commands]
    for item in judged.items:
        yield from _item_rows(item)


def _item_rows(item: JudgedItem, ours: str = "") -> Iterator[list[str]]:
    for place, claim in enumerate(item.claims):
        first = "" if place else f"{ours}{item.rows.item.title}"
        yield [first, *_claim(item, claim, ours), _beside(item, claim), _command(item)]


def _claim(item: JudgedItem, claim: JudgedClaim, ours: str) -> list[str]:
    says, paper, here, pairs, verdict = claim_cells(item.rows, claim)
    says = f"{ours}{says.removeprefix(ours)}"
    counts = sorted({len(pair.seeds) for pair in claim.pairs} - {0})
    seeds = " to ".join(map(str, dict.fromkeys([*counts[:1], *counts[-1:]])))
    return [says, paper, here, pairs, f"{item.rows.size}, {seeds} seeds" if seeds else "none", verdict]


def _beside(item: JudgedItem, claim: JudgedClaim) -> str:
    study = item.rows.study
    not_here = study.sizes[item.rows.size].not_here if not item.rows.made else None
    told = study.no_real_data if not (not_here or "").startswith(study.no_real_data or "") else None
    cause = claim.claim.cause if claim.verdict in (Verdict.NOT_HELD, Verdict.UNDECIDED) else None
    return "; ".join(filter(None, [cause, item.rows.item.notes, told, not_here]))


def _command(item: JudgedItem) -> str:
    size = "" if item.rows.size == "laptop" else f" --scale {item.rows.size}"
    return f"`offbeat reproduce {item.rows.full_name}{size}`"
