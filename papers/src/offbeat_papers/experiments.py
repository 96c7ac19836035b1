"""The experiments of the papers, each judged by the rows of its items."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from offbeat.documents import parse_yaml
from offbeat.recipes.recipe import Section
from offbeat.verdicts.verdict import Verdict, experiment_verdict
from offbeat_papers.arm_rows import ItemRows, item_rows, known_cells
from offbeat_papers.cells import Cell
from offbeat_papers.judge import JudgedItem, judge_items
from offbeat_papers.load import all_items
from offbeat_papers.rows import ResultRow, Results
from offbeat_papers.study import SIZES, Size, Study

Run = tuple[str, str, str, str, int]
"""Study, size, label, column and seed of a run."""


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
            is the effect of the item's second claim, its "mean", or its "median", "least" or "largest" pair;
            "-" for "+" where the claimed one is behind. "{item#2.verdict}" is the claim's verdict.
            "{item#2.reached}" says how many runs of its labels reached the target, "leader" and "others" of
            the claimed one and of the others.
        rows: What the rows show, in the same form.
        figures: Its items whose figures its page has.
        claims: The claims that its page has, ten at most: "item#2" is the second claim of an item.
        finding: What its claims come to, in a sentence or two, with numbers as in `gain`.
    """

    title: str
    figures: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    finding: str = ""
    gain: str = ""
    rows: str = ""

    @property
    def name(self) -> str:
        """The paper's title without authors and year."""
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
        """The runs of the experiment."""
        return frozenset(
            (item.rows.study.name, item.rows.size, *arm, seed)
            for item in self.items
            for arm, rows in item.rows.runs.items()
            for seed in rows
        )


def rows_of(items: Iterable[JudgedItem]) -> list[ResultRow]:
    """The rows of some items, each once, of every kind of processor."""
    kinds = (kind for item in items for kind in item.rows.kinds.values())
    rows = {
        (row.digest, row.processor_name): row
        for arms in kinds for seeds in arms.values() for row in seeds.values()
    }  # fmt: skip
    return [*rows.values()]


@cache
def load_experiments() -> Experiments:
    """The experiments that the papers have."""
    text = files("offbeat_papers").joinpath("experiments.yaml").read_text(encoding="utf-8")
    return Experiments.model_validate(parse_yaml(text, "experiments.yaml"))


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
