"""The rows of an item: its runs by label, column and seed, and the arms that its claims compare."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from offbeat.core.metric_names import NamedMetric, first_shown
from offbeat.verdicts.cost import Cost
from offbeat_papers.cells import MOST_SEEDS, Cell, study_cells
from offbeat_papers.levels import LEVELS, Climb, RunLevels
from offbeat_papers.load import size_columns, study_recipe
from offbeat_papers.rows import ResultRow, Results, target_text
from offbeat_papers.run import target_of
from offbeat_papers.study import COSTS, VALUES, Item, PaperClaim, Size, Study

Arm = tuple[str, str]
"""A label and a column."""

ArmRows = Mapping[Arm, Mapping[int, ResultRow]]
"""Rows by arm and seed."""


@dataclass(frozen=True)
class ItemRows:
    """The rows of an item at a size.

    Attributes:
        study: Its study.
        name: Its name in the study.
        size: The size.
        metric: Its metric.
        runs: The rows by arm and seed.
        kinds: The rows by kind of processor, arm and seed: a run that was made on several has a row of each.
        targets: Its target by column, for the columns that have one.
        plan: Its runs with the recipe's own seeds, each an arm and a seed.
        limits: Limit of its runs in virtual seconds, by column.
        seeds: The seeds of the recipe.
        levels: Levels of its runs by digest, machine, metric and target. Empty means that they have none.
    """

    study: Study
    name: str
    size: Size
    metric: str
    runs: ArmRows
    kinds: Mapping[str, ArmRows]
    targets: Mapping[str, float]
    plan: frozenset[tuple[Arm, int]]
    limits: Mapping[str, float]
    seeds: range
    levels: Mapping[tuple[str, str, str, str], RunLevels] = field(default_factory=dict)

    @property
    def item(self) -> Item:
        """The item."""
        return self.study.items[self.name]

    @property
    def full_name(self) -> str:
        """Paper and item: "fedcompass/table-1"."""
        return f"{self.study.name.partition('/')[0]}/{self.name}"

    def on(self, kind: str) -> "ItemRows":
        """The item with the rows of one kind of processor."""
        return replace(self, runs=self.kinds[kind])

    @property
    def made(self) -> int:
        """Number of runs that have a row."""
        return sum(map(len, self.runs.values()))

    @property
    def made_as_planned(self) -> int:
        """Number of runs with the recipe's own seeds that have a row."""
        return sum((arm, seed) in self.plan for arm, runs in self.runs.items() for seed in runs)

    @property
    def planned(self) -> int:
        """Number of its runs with the recipe's own seeds, including the runs without a row."""
        return len(self.plan)

    @property
    def unmeasured(self) -> list[float]:
        """Targets of the item that its rows have not measured."""
        if not {self.item.shows, *(claim.by for claim in self.item.claims)}.intersection(COSTS):
            return []
        found = {
            self.targets[arm[1]] for arm, runs in self.runs.items() for row in runs.values()
            if arm[1] in self.targets and row.cost("time", self.metric, self.targets[arm[1]]) is None
        }  # fmt: skip
        return sorted(found)

    @property
    def measure(self) -> NamedMetric:
        """The metric with its direction."""
        return NamedMetric.of(self.metric, {})

    def arms(self) -> Iterator[Arm]:
        """The arms of the item's table, label by label."""
        for label in self.study.item_labels(self.name):
            for column in self.study.item_columns(self.name):
                if (label, column) in self.runs:
                    yield label, column

    def amounts(self, arm: Arm, by: str) -> dict[int, Cost | float]:
        """Each seed's amount of a cost or a value for an arm; without seeds that did not measure it."""
        found: dict[int, Cost | float] = {}
        for seed, row in self.runs.get(arm, {}).items():
            amount = self._amount(row, arm[1], by)
            if amount is not None:
                found[seed] = amount
        return found

    def values(self, arm: Arm, by: str) -> dict[int, float]:
        """Each seed's value for an arm; without seeds that did not measure it."""
        amounts = self.amounts(arm, by)
        return {seed: amount for seed, amount in amounts.items() if not isinstance(amount, Cost)}

    def climbs(self, arm: Arm, by: str) -> dict[int, Climb]:
        """Each seed's way to the target; without seeds that did not measure the target, or its levels."""
        found = {}
        for seed, row in self.runs.get(arm, {}).items():
            if arm[1] not in self.targets or row.cost(by, self.metric, self.targets[arm[1]]) is None:
                continue
            # A run without levels that has not diverged did not miss them: nobody has looked.
            if row.diverged or self._level_key(row, arm[1]) in self.levels:
                found[seed] = self._climb(row, arm[1], by)
        return found

    def _climb(self, row: ResultRow, column: str, by: str) -> Climb:
        levels, place = self.levels.get(self._level_key(row, column)), COSTS.index(by)
        # A run that has diverged has no levels: it would never have reached them.
        end = self._horizon(column, by) if levels is None else float(row.spent[self.metric][place])
        costs = (None,) * len(LEVELS) if levels is None else levels.costs
        return Climb(
            tuple(Cost(end, False) if each is None else Cost(each[place], True) for each in costs), end
        )

    def _level_key(self, row: ResultRow, column: str) -> tuple[str, str, str, str]:
        return row.digest, row.machine, self.metric, target_text(self.targets[column])

    def _horizon(self, column: str, by: str) -> float:
        """Censoring of a run that has diverged: the most that any run in its column could spend."""
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
            # The final model of a diverged run predicts nothing right.
            return 0.0
        return value


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
    if cells is None:
        cells = known_cells(study, size, results)
    planned = cells_of_item(study, name, cells)
    runs = _by_arm(planned, results.rows(study.name))
    kinds = {kind: _by_arm(planned, rows) for kind, rows in results.rows_by_kind(study.name).items()}
    targets = {cell.column: target_of(study, name, cell) for cell in planned}
    chosen = study.items[name].metric or next((cell.recipe.metric for cell in planned), None)
    first = min((cell.seed for cell in planned), default=0)
    count = next((cell.recipe.seeds for cell in planned), 0)
    recorded = [metric for arm in runs.values() for row in arm.values() for metric in row.final]
    return ItemRows(
        study, name, size, chosen or first_shown(recorded), runs, kinds,
        {column: target for column, target in targets.items() if target is not None},
        frozenset(((c.label, c.column), c.seed) for c in planned if c.seed - first < c.recipe.seeds),
        {cell.column: cell.recipe.until.seconds or 0.0 for cell in planned},
        range(first, first + count),
        results.levels(study.name),
    )  # fmt: skip


def _by_arm(cells: Sequence[Cell], rows: Mapping[str, ResultRow]) -> ArmRows:
    """The rows of runs by arm and seed, with every arm."""
    found: dict[Arm, dict[int, ResultRow]] = {}
    for cell in cells:
        seeds = found.setdefault((cell.label, cell.column), {})
        if cell.digest in rows:
            seeds[cell.seed] = rows[cell.digest]
    return found


def known_cells(study: Study, size: Size, results: Results) -> list[Cell]:
    """The runs of a study at a size, with as many seeds as there are rows of, at least the recipe's."""
    first = study_recipe(study, size, size_columns(study, size)[0]).seed
    seeds = [row.seed - first + 1 for row in results.rows(study.name).values() if row.size == size]
    return study_cells(study, size, least_seeds=max((n for n in seeds if n <= MOST_SEEDS), default=1))


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
    return cells_of_item(study, name, cells)


def cells_of_item(study: Study, name: str, cells: Sequence[Cell]) -> list[Cell]:
    """The runs that an item needs: those of its table, and those of its claims."""
    arms = {(label, column) for label in study.item_labels(name) for column in study.item_columns(name)}
    for claim in study.items[name].claims:
        arms.update(
            arm for pair in claim_arms(study, name, claim) for arm in (*pair, *bases_of(claim, *pair))
        )
    return [cell for cell in cells if (cell.label, cell.column) in arms]


def claim_arms(study: Study, name: str, claim: PaperClaim) -> list[tuple[Arm, Arm]]:
    """The pairs of arms of a claim: the one that is said to be ahead, and the other."""
    columns = study.item_columns(name) if claim.columns is None else claim.columns
    named = claim.against or {column: column for column in columns}
    pairs = [
        (_arm(claim.better, column), _arm(other, against))
        for column, against in named.items()
        for other in claim.than
    ]
    return list(dict.fromkeys(pairs))


def bases_of(claim: PaperClaim, better: Arm, than: Arm) -> tuple[Arm, ...]:
    """Of a claim of gains the arms that the two of a pair are compared with, each in its column."""
    return ((claim.over[0], better[1]), (claim.over[-1], than[1])) if claim.over else ()


def _arm(text: str, column: str) -> Arm:
    label, at, own = text.partition("@")
    return label, own if at else column
