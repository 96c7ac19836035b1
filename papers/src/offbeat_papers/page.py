"""The page "Do the papers hold?": every experiment of the papers with its verdict, from rows alone."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from textwrap import fill

import yaml

from offbeat.recipes.recipe import Section
from offbeat.verdicts.answers import Quantifier
from offbeat.verdicts.verdict import Verdict, experiment_verdict
from offbeat_papers.cells import Cell
from offbeat_papers.judge import ItemRows, JudgedClaim, JudgedItem, item_rows, judge_items, known_cells
from offbeat_papers.load import all_items
from offbeat_papers.rows import Results
from offbeat_papers.study import SIZES, Size, Study
from offbeat_papers.texts import ASKED, CLAIM_HEADS, NO_EFFECT, Grid, claim_cells, effect_in_prose, markdown

_HEADS = ["experiment, item", *CLAIM_HEADS[:-1], "runs", CLAIM_HEADS[-1], "beside it", "command"]
_EFFECT = re.compile(r"\{([+-])([\w-]+)#([1-9]\d*)\.(mean|least|largest)\}")
_UNSHOWN = (Verdict.NOT_HELD, Verdict.NO_DIFFERENCE, Verdict.UNDECIDED)
_WIDTH = 120
Run = tuple[str, str, str, str, int]
"""Study, size, label, column and seed of a run."""
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
        again: The experiment whose runs have all of its runs, of those that have. None means that it has runs
            of its own, or none.
    """

    experiment: PaperExperiment
    items: tuple[JudgedItem, ...]
    causes: tuple[JudgedItem, ...]
    verdict: Verdict
    again: str | None = None

    @property
    def runs(self) -> frozenset[Run]:
        """Its runs."""
        return frozenset(
            (item.rows.study.name, item.rows.size, *arm, seed)
            for item in self.items
            for arm, rows in item.rows.runs.items()
            for seed in rows
        )


def load_experiments() -> Experiments:
    """The experiments that the papers have."""
    text = files("offbeat_papers").joinpath("experiments.yaml").read_text(encoding="utf-8")
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
    papers: defaultdict[str, dict[str, ItemRows]] = defaultdict(dict)
    for name, (study, item) in known.items():
        size = largest_size(study, results)
        if study.name not in cells:
            cells[study.name] = known_cells(study, size, results)
        papers[name.partition("/")[0]][name] = item_rows(study, item, size, results, cells[study.name])
    judged = {
        name: item
        for rows in papers.values()
        for name, item in zip(rows, judge_items([*rows.values()]), strict=True)
    }
    return _with_again([_judged(experiment, judged) for experiment in load_experiments().experiments])


def _with_again(judged: Sequence[JudgedExperiment]) -> list[JudgedExperiment]:
    """Say of each experiment whose runs are all another's whose they are: the largest one's."""
    runs = {each.experiment.name: each.runs for each in judged}
    place = {name: number for number, name in enumerate(runs)}

    def again(name: str) -> str | None:
        wider = [
            other
            for other, others in runs.items()
            if runs[name] and (runs[name] < others or (runs[name] == others and place[other] < place[name]))
        ]
        return max(wider, key=lambda other: (len(runs[other]), -place[other]), default=None)

    return [replace(each, again=again(each.experiment.name)) for each in judged]


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
        "`offbeat reproduce --page docs/papers.md` from the rows in `papers/results`.",
        "An experiment's verdict stands in its first row, in bold; below it are the claims of its tables and "
        "figures. The effect of a claim is how many times as long the other one takes, or by how much the "
        "first is ahead; of a claim on several pairs of arms, the mean over them with its 95 % interval by "
        "Welch's t, then the median, the least and the largest pair. Beside it stands what the runs say of "
        "the mean and of every pair, and in how many pairs the claimed one is ahead, by shrinkage [with its "
        "95 % interval]. The verdict answers what the paper's words ask: of the mean, where no other "
        "question stands in brackets. Of an undecided claim it says which effect its runs would have shown "
        "in four of five cases. What begins with *ours* is no claim of the paper's: it tests why an "
        "experiment comes out as it does, and has no part in its verdict.",
        markdown(_counts(judged, papers, _hours(results, {study.name for study, _ in known.values()}))),
        _distinct_text(judged),
        _rows_text(judged),
        "Claims that compare the same numbers, as those of a table and of the figure of the same runs, count "
        "once below. Left out are the worked examples and what stands in for data that cannot be had.",
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


def _distinct_text(judged: Sequence[JudgedExperiment]) -> str:
    """Of how many experiments with runs of their own the page speaks."""
    run = [each for each in judged if each.runs and each.verdict != Verdict.NO_REAL_DATA]
    own = [each for each in run if each.again is None]
    return (
        f"Runs were made of {len(run)} of the {len(judged)} experiments, on real data; the runs of "
        f"{len(run) - len(own)} are those of another experiment again, as its row says. So the page speaks "
        f"of {len(own)} distinct experiments."
    )


def _rows_text(judged: Sequence[JudgedExperiment]) -> str:
    """Of which commits and kinds of processor the runs are, each counted once."""
    rows = {
        row.digest: row
        for each in judged
        for item in (*each.items, *each.causes)
        for runs in item.rows.runs.values()
        for row in runs.values()
    }.values()
    dirty = sum(row.commit.endswith("-dirty") for row in rows)
    kinds = Counter(row.processor_name for row in rows)
    named = ", ".join(f"{number} on {kind}" for kind, number in kinds.most_common())
    return (
        f"Of the {len(rows)} runs {named}: runs of different kinds of processor are never paired. The "
        f"commits of {dirty} runs are marked `-dirty` in their rows: the checkout had "
        "changes that no commit has."
    )


def _claim_counts(judged: Sequence[JudgedExperiment], papers: Mapping[str, Paper]) -> Grid:
    """The distinct claims of the papers by verdict; of all also the answers to other questions."""
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
    every = [claim for claims in own.values() for claim in claims]
    rows = [_claim_row(paper.name, own[name]) for name, paper in papers.items()]
    rows.append(_claim_row("**all**", every))
    rows += [_claim_row(f"all, if they spoke of {ASKED[name]}", every, name) for name in ("average", "every")]
    return [["claims", *Verdict, "distinct", "with those that are said again"], *rows]


def _claim_row(title: str, claims: Sequence[JudgedClaim], question: Quantifier | None = None) -> list[str]:
    distinct = {claim.measured.key: claim for claim in claims}.values()
    verdicts = [claim.verdict if question is None else claim.answers[question] for claim in distinct]
    return [title, *(str(verdicts.count(each)) for each in Verdict), str(len(distinct)), str(len(claims))]


def _table(own: Sequence[JudgedExperiment]) -> Iterator[list[str]]:
    """The rows of a paper; a cause of several experiments is told with the first of them."""
    told: dict[str, str] = {}
    for each in own:
        yield from _rows(each)
        for item in each.causes:
            name = item.rows.full_name
            if name in told:
                title = f"{OURS}{item.rows.item.title}"
                beside = f"its claims stand with {told[name]}"
                yield _row(title, beside, verdict=item.verdict.value, command=_command(item))
            else:
                told[name] = each.experiment.name.partition("/")[2]
                yield from _item_rows(item, OURS)


def _rows(judged: JudgedExperiment) -> Iterator[list[str]]:
    experiment = judged.experiment
    name = f"{experiment.name.partition('/')[2]}: {experiment.title}"
    test = f"`pytest {experiment.test}`" if experiment.test else ""
    again = f"the runs of {judged.again.partition('/')[2]} again" if judged.again else None
    beside = "; ".join(filter(None, [experiment.notes, again, experiment.no_real_data]))
    commands = test or " ".join(_command(item) for item in judged.items if not item.claims)
    exact = "exact" if test else ""
    yield _row(
        f"**{name}**", "", runs=exact, verdict=f"**{judged.verdict}**", beside=beside, command=commands
    )
    for item in judged.items:
        yield from _item_rows(item)


def _row(
    first: str, says: str, *, runs: str = "", verdict: str = "", beside: str = "", command: str = ""
) -> list[str]:
    """A row without the numbers of a claim."""
    return [first, says, *[""] * (len(CLAIM_HEADS) - 2), runs, verdict, beside, command]


def _item_rows(item: JudgedItem, ours: str = "") -> Iterator[list[str]]:
    for place, claim in enumerate(item.claims):
        first = "" if place else f"{ours}{item.rows.item.title}"
        says, *numbers, verdict = claim_cells(item.rows, claim)
        says = f"{ours}{says.removeprefix(ours)}"
        yield [first, says, *numbers, _runs(item, claim), verdict, _beside(item, claim), _command(item)]


def _runs(item: JudgedItem, claim: JudgedClaim) -> str:
    """Size and seeds of a claim: of those there are, as many as the last look has."""
    most = max((len(pair.seeds) for pair in claim.pairs), default=0)
    if not most:
        return "none"
    used = len(claim.seeds)
    return f"{item.rows.size}, {used} seeds" + (f" (of some pairs {most})" if most > used else "")


def _beside(item: JudgedItem, claim: JudgedClaim) -> str:
    study = item.rows.study
    not_here = study.sizes[item.rows.size].not_here if not item.rows.made else None
    told = study.no_real_data if not (not_here or "").startswith(study.no_real_data or "") else None
    cause = claim.claim.cause if claim.verdict in _UNSHOWN else None
    return "; ".join(filter(None, [cause, item.rows.item.notes, told, not_here]))


def _command(item: JudgedItem) -> str:
    size = "" if item.rows.size == "laptop" else f" --scale {item.rows.size}"
    return f"`offbeat reproduce {item.rows.full_name}{size}`"
