"""What is open: the claims that are undecided, the runs that would bring them further, and their cost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from offbeat.verdicts.multiplicity import LOOKS
from offbeat.verdicts.verdict import Verdict
from offbeat_papers.arm_rows import cells_of_item
from offbeat_papers.cells import Cell, study_cells
from offbeat_papers.experiments import JudgedExperiment, load_experiments
from offbeat_papers.judge import JudgedItem, undecided_cells
from offbeat_papers.load import all_items
from offbeat_papers.rows import Results
from offbeat_papers.run import estimate, missing
from offbeat_papers.study import Size, Study
from offbeat_papers.texts import Grid


@dataclass(frozen=True)
class OpenClaims:
    """What is open of a paper.

    Attributes:
        paper: The paper's title.
        undecided: Number of distinct claims that are undecided, also of the items that show causes.
        last: Of these, how many have been looked at with all seeds.
        unreached: Of these, how many compare runs of which most end before the target: seeds do not help.
        unreached_hours: Processor hours of the runs that those compare.
        unpaired: Number of distinct claims with pairs that wait for runs of one kind of processor.
        planned: The runs with the studies' own seeds that have no row.
        further: The runs that bring the undecided claims to their next look.
    """

    paper: str
    undecided: int
    last: int
    unreached: int
    unreached_hours: float
    unpaired: int
    planned: Sequence[Cell]
    further: Sequence[Cell]


def open_claims(judged: Sequence[JudgedExperiment]) -> list[OpenClaims]:
    """What is open of each paper, on real data."""
    return [
        _of_paper(paper.title, _items(each for each in judged if each.experiment.paper == name))
        for name, paper in load_experiments().papers.items()
    ]


def _items(judged: Iterable[JudgedExperiment]) -> list[JudgedItem]:
    """The items of some experiments and of their causes, each once, study by study."""
    found = {
        item.rows.full_name: item
        for each in judged
        if each.experiment.no_real_data is None
        for item in (*each.items, *each.causes)
        if item.rows.study.no_real_data is None
    }
    return sorted(found.values(), key=lambda item: (item.rows.study.name, item.rows.full_name))


def _of_paper(title: str, items: Sequence[JudgedItem]) -> OpenClaims:
    distinct = {claim.measured.asked: claim for item in items for claim in item.claims}
    open_now = [claim for claim in distinct.values() if claim.verdict == Verdict.UNDECIDED]
    spent = sum(claim.last is not None and claim.last.seeds >= max(LOOKS) for claim in open_now)
    unreached = [claim for claim in open_now if claim.unreached]
    short = {row.digest: row.processor or 0.0 for claim in unreached for row in claim.runs}
    unpaired = sum(claim.mixed > 0 for claim in distinct.values())
    planned: dict[str, Cell] = {}
    further: dict[str, Cell] = {}
    for _, own in groupby(items, key=lambda item: item.rows.study.name):
        of_study = list(own)
        rows = of_study[0].rows
        cells = study_cells(rows.study, rows.size, seeds=max(LOOKS))
        for item in of_study:
            needed = cells_of_item(item.rows.study, item.rows.name, cells)
            planned |= {cell.digest: cell for cell in needed if cell.seed in item.rows.seeds}
            further |= {cell.digest: cell for cell in undecided_cells(item, needed)}
    further = {digest: cell for digest, cell in further.items() if digest not in planned}
    return OpenClaims(
        title, len(open_now), spent, len(unreached), sum(short.values()) / 3600, unpaired,
        [*planned.values()], [*further.values()],
    )  # fmt: skip


def open_grid(results: Results, judged: Sequence[JudgedExperiment]) -> Grid:
    """A row for each paper: what is open, and the runs and processor hours that it would take."""
    heads = [
        "paper", "undecided", "of these after the last look", "of these need longer runs",
        "processor hours of these runs", "claims that wait for one kind of processor",
        "planned runs that are missing", "runs to the next look", "of these on a GPU", "processor hours",
    ]  # fmt: skip
    grid = [heads]
    for each in open_claims(judged):
        cells = [missing(own, results) for own in (each.planned, each.further)]
        planned, further = (estimate(own, results) for own in cells)
        hours = f"{(planned.processor + further.processor) / 3600:.1f}"
        if unknown := planned.unknown + further.unknown:
            hours += f", and {unknown} runs of unknown cost"
        on_gpu = sum(cell.recipe.training.device != "cpu" for own in cells for cell in own)
        grid.append([
            each.paper, str(each.undecided), str(each.last), str(each.unreached),
            f"{each.unreached_hours:.1f}", str(each.unpaired), str(planned.runs), str(further.runs),
            str(on_gpu), hours,
        ])  # fmt: skip
    return grid


def larger_grid() -> Grid:
    """A row for each size of a study that was not run, with the reason or the cost."""
    studies: dict[str, Study] = {study.name: study for study, _ in all_items().values()}
    rows = [
        [name, size, study.sizes[size].not_here or ""]
        for name, study in studies.items()
        for size in _not_run(study)
    ]
    return [["study", "size", "why it was not run"], *rows]


def _not_run(study: Study) -> list[Size]:
    return [size for size, own in study.sizes.items() if own.not_here]
