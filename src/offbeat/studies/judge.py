"""An item judged by its rows: its table, and a verdict on each claim with the pairs it rests on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, log1p
from statistics import fmean

from offbeat.core.metric_names import NamedMetric, first_shown
from offbeat.studies.cells import Cell, study_cells
from offbeat.studies.rows import Cost, ResultRow, Results
from offbeat.studies.run import target_of
from offbeat.studies.study import COSTS, VALUES, Item, Number, PaperClaim, Size, Study
from offbeat.studies.verdicts import (
    Interval,
    Verdict,
    claim_verdict,
    experiment_verdict,
    interval,
    log_ratio,
    pair_verdict,
)

Arm = tuple[str, str]
"""A label and a column."""


@dataclass(frozen=True)
class ItemRows:
    """The rows of an item at a size.

    Attributes:
        study: Its study.
        name: Its name in the study.
        size: The size.
        metric: Its metric.
        runs: The rows by arm and seed.
        targets: Its target by column, of the columns that have one.
        planned: Number of runs that it has, with those that have no row.
        limits: Virtual seconds to which its runs are limited, by column.
    """

    study: Study
    name: str
    size: Size
    metric: str
    runs: Mapping[Arm, Mapping[int, ResultRow]]
    targets: Mapping[str, float]
    planned: int
    limits: Mapping[str, float]

    @property
    def item(self) -> Item:
        """The item."""
        return self.study.items[self.name]

    @property
    def full_name(self) -> str:
        """Paper and item: "fedcompass/table-1"."""
        return f"{self.study.name.partition('/')[0]}/{self.name}"

    @property
    def made(self) -> int:
        """Number of runs that have a row."""
        return sum(map(len, self.runs.values()))

    @property
    def measure(self) -> NamedMetric:
        """What is known of the metric."""
        return NamedMetric.of(self.metric, {})

    def arms(self) -> Iterator[Arm]:
        """The arms of the item's table, label by label."""
        for label in self.study.item_labels(self.name):
            for column in self.study.item_columns(self.name):
                if (label, column) in self.runs:
                    yield label, column

    def amounts(self, arm: Arm, by: str) -> dict[int, Cost | float]:
        """What each seed of an arm has of a cost or a value; without those that did not measure it."""
        found: dict[int, Cost | float] = {}
        for seed, row in self.runs.get(arm, {}).items():
            amount = self._amount(row, arm[1], by)
            if amount is not None:
                found[seed] = amount
        return found

    def _horizon(self, column: str, by: str) -> float:
        """What a run that has diverged is censored at: the most that any run in its column could spend."""
        rows = [row for (_, own), runs in self.runs.items() if own == column for row in runs.values()]
        spent = [row.spent[self.metric][COSTS.index(by)] for row in rows if self.metric in row.spent]
        limit = self.limits.get(column, 0.0) if by == "time" else 0.0
        return max(limit, *map(float, spent), 0.0)

    def _amount(self, row: ResultRow, column: str, by: str) -> Cost | float | None:
        if by in COSTS:
            target = self.targets.get(column)
            cost = None if target is None else row.cost(by, self.metric, target)
            return cost and replace(cost, amount=min(cost.amount, self._horizon(column, by)))
        kind, metric = (by, self.metric) if by in VALUES else ("level", by)
        value = row.value(kind, metric)
        if value is None and row.diverged and kind != "change" and NamedMetric.of(metric).is_share:
            return 0.0  # the model that it ends with gets nothing right
        return value


@dataclass(frozen=True)
class JudgedPair:
    """A pair of arms of a claim.

    Attributes:
        better: The arm that is said to be ahead.
        than: The other arm.
        verdict: What the runs say.
        seeds: The seeds that both have.
        advantages: The advantage in each seed that says something; of a cost, its logarithm.
        paper: The advantage by the paper's numbers, in the same unit; infinite where the other never got
            there. None where the paper has no such numbers.
    """

    better: Arm
    than: Arm
    verdict: Verdict
    seeds: frozenset[int]
    advantages: Mapping[int, float]
    paper: float | None

    @cached_property
    def mean(self) -> Interval | None:
        """The mean advantage with its interval over seeds; None where no seed says anything."""
        return interval(list(self.advantages.values()))


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its verdict and its pairs.

    Attributes:
        claim: The claim.
        by: What is compared.
        verdict: The verdict.
        pairs: Its pairs of arms that are run at the size.
        named: Number of pairs that it names.
    """

    claim: PaperClaim
    by: str
    verdict: Verdict
    pairs: tuple[JudgedPair, ...]
    named: int

    def count(self, verdict: Verdict) -> int:
        """Number of pairs of a verdict."""
        return sum(pair.verdict == verdict for pair in self.pairs)

    @cached_property
    def mean(self) -> Interval | None:
        """The mean advantage over all pairs, with its interval over seeds; no verdict rests on it."""
        return interval(self._means())

    @cached_property
    def on_average(self) -> Verdict:
        """What the mean advantage over all pairs says; no other verdict rests on it."""
        margin = log1p(self.claim.margin) if self.by in COSTS else self.claim.margin
        return pair_verdict(self._means(), margin)

    def _means(self) -> list[float]:
        """The mean advantage over all pairs in each seed that all have: more of some pairs would shift it."""
        run = [pair for pair in self.pairs if pair.seeds]
        everywhere = frozenset(run[0].seeds if run else ()).intersection(*(pair.seeds for pair in run))
        by_seed: dict[int, list[float]] = {}
        for pair in run:
            for seed, advantage in pair.advantages.items():
                if seed in everywhere:
                    by_seed.setdefault(seed, []).append(advantage)
        return [fmean(advantages) for advantages in by_seed.values()]


@dataclass(frozen=True)
class JudgedItem:
    """An item with the verdicts on its claims.

    Attributes:
        rows: Its rows.
        claims: Its claims.
        verdict: The verdict on all of them.
    """

    rows: ItemRows
    claims: tuple[JudgedClaim, ...]
    verdict: Verdict


def item_rows(
    study: Study, name: str, size: Size, results: Results, cells: Sequence[Cell] | None = None
) -> ItemRows:
    """Collect the rows of an item that are of the study as it is now.

    Args:
        study: The study.
        name: The item.
        size: The size.
        results: Where the rows are.
        cells: The study's runs at the size. None means `known_cells`.

    Raises:
        UsageError: The study has no such size, or the rows cannot be read.
    """
    known = results.rows(study.name)
    if cells is None:
        cells = known_cells(study, size, results)
    planned = _of_item(study, name, cells)
    runs: dict[Arm, dict[int, ResultRow]] = {}
    for cell in planned:
        found = runs.setdefault((cell.label, cell.column), {})
        if cell.digest in known:
            found[cell.seed] = known[cell.digest]
    targets = {cell.column: target_of(study, name, cell) for cell in planned}
    chosen = study.items[name].metric or next((cell.recipe.metric for cell in planned), None)
    recorded = [metric for arm in runs.values() for row in arm.values() for metric in row.final]
    return ItemRows(
        study, name, size, chosen or first_shown(recorded), runs,
        {column: target for column, target in targets.items() if target is not None},
        sum(cell.seed - cell.recipe.seed < cell.recipe.seeds for cell in planned),
        {cell.column: cell.recipe.until.seconds or 0.0 for cell in planned},
    )  # fmt: skip


def known_cells(study: Study, size: Size, results: Results) -> list[Cell]:
    """The runs of a study at a size, with as many seeds as there are rows of, at least the recipe's."""
    first = int(study.recipe.get("seed", 0))
    seeds = [row.seed - first + 1 for row in results.rows(study.name).values() if row.size == size]
    return study_cells(study, size, least_seeds=max(seeds, default=1))


def item_cells(
    study: Study,
    name: str,
    size: Size,
    *,
    columns: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    seeds: int | None = None,
) -> list[Cell]:
    """The runs that an item needs, for its table and its claims; arguments as of `study_cells`."""
    cells = study_cells(study, size, columns=columns, labels=labels, seeds=seeds)
    return _of_item(study, name, cells)


def _of_item(study: Study, name: str, cells: Sequence[Cell]) -> list[Cell]:
    """The runs that an item needs: those of its table, and those of its claims."""
    arms = {(label, column) for label in study.item_labels(name) for column in study.item_columns(name)}
    for claim in study.items[name].claims:
        arms.update(arm for pair in claim_arms(study, name, claim) for arm in pair)
    return [cell for cell in cells if (cell.label, cell.column) in arms]


def claim_arms(study: Study, name: str, claim: PaperClaim) -> list[tuple[Arm, Arm]]:
    """The pairs of arms of a claim: the one that is said to be ahead, and the other."""
    columns = study.item_columns(name) if claim.columns is None else claim.columns
    pairs = [(_arm(claim.better, column), _arm(other, column)) for column in columns for other in claim.than]
    return list(dict.fromkeys(pairs))


def _arm(text: str, column: str) -> Arm:
    label, at, own = text.partition("@")
    return label, own if at else column


def judge_item(rows: ItemRows) -> JudgedItem:
    """Judge the claims of an item by its rows.

    Columns and labels that are not run at its size are left out of its claims. Where there are no real data
    the verdict says so.
    """
    claims = tuple(judge_claim(rows, claim) for claim in rows.item.claims)
    if rows.study.no_real_data is not None:
        return JudgedItem(rows, claims, Verdict.NO_REAL_DATA)
    return JudgedItem(rows, claims, experiment_verdict([claim.verdict for claim in claims]))


def undecided_cells(
    study: Study, name: str, size: Size, results: Results, cells: Sequence[Cell]
) -> list[Cell]:
    """Those of some runs whose arms leave a claim of an item undecided with the recipe's number of seeds.

    More seeds than the recipe's do not count, so that a call that goes on chooses as the first one did. Of a
    pair that says nothing in any seed more seeds are not expected to say more: it is left out.

    Args:
        study: The study.
        name: The item.
        size: The size.
        results: Where the rows are.
        cells: The runs, with as many seeds as are wanted.
    """
    judged = judge_item(item_rows(study, name, size, results, study_cells(study, size)))
    arms = {
        arm
        for claim in judged.claims
        if claim.verdict == Verdict.UNDECIDED
        for pair in claim.pairs
        if pair.verdict == Verdict.UNDECIDED and pair.advantages
        for arm in (pair.better, pair.than)
    }
    return [cell for cell in cells if (cell.label, cell.column) in arms]


def judge_claim(rows: ItemRows, claim: PaperClaim) -> JudgedClaim:
    """Judge a claim by the rows of its item."""
    by = claim.by or rows.item.shows
    named = claim_arms(rows.study, rows.name, claim)
    arms = [pair for pair in named if all(arm in rows.runs for arm in pair)]
    pairs = tuple(_judge_pair(rows, claim, by, *pair) for pair in arms)
    verdict = claim_verdict([pair.verdict for pair in pairs])
    if rows.study.no_real_data is not None:
        verdict = Verdict.NO_REAL_DATA
    return JudgedClaim(claim, by, verdict, pairs, len(named))


def _judge_pair(rows: ItemRows, claim: PaperClaim, by: str, better: Arm, than: Arm) -> JudgedPair:
    ahead, behind = rows.amounts(better, by), rows.amounts(than, by)
    seeds = [seed for seed in ahead if seed in behind]
    sign = _sign(rows, by)
    advantages = [_advantage(ahead[seed], behind[seed], sign) for seed in seeds]
    margin = log1p(claim.margin) if by in COSTS else claim.margin
    said = {seed: each for seed, each in zip(seeds, advantages, strict=True) if each is not None}
    return JudgedPair(
        better, than, pair_verdict(advantages, margin), frozenset(seeds), said,
        _paper_advantage(rows.item, by, better, than, sign),
    )  # fmt: skip


def _sign(rows: ItemRows, by: str) -> float:
    """1 where more of it is better."""
    if by == "change":
        return -1.0
    measure = rows.measure if by in VALUES else NamedMetric.of(by, {})
    return 1.0 if measure.higher_is_better else -1.0


def _advantage(ahead: Cost | float, behind: Cost | float, sign: float) -> float | None:
    if isinstance(ahead, Cost) and isinstance(behind, Cost):
        return log_ratio(ahead, behind)
    assert isinstance(ahead, float | int)
    assert isinstance(behind, float | int)
    return sign * (ahead - behind)


def _paper_advantage(item: Item, by: str, better: Arm, than: Arm, sign: float) -> float | None:
    """The advantage by the paper's numbers; None where they are of something else, or both are "never"."""
    missing = object()
    numbers = [item.numbers.get(column, {}).get(label, missing) for label, column in (better, than)]
    if by != item.shows or missing in numbers or numbers == [None, None]:
        return None
    ahead, behind = (number_value(number) for number in numbers)  # type: ignore[arg-type]
    if ahead is None or behind is None:
        worse = -1.0 if ahead is None else 1.0
        return worse * float("inf")
    return log(behind / ahead) if by in COSTS else sign * (ahead - behind)


def number_value(number: Number) -> float | None:
    """A paper's number without its deviation."""
    return number[0] if isinstance(number, tuple) else number
