"""Items judged by their rows: a verdict on each claim, with the pairs and the answers it rests on."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan, log, log1p
from statistics import fmean

from offbeat.core.metric_names import NamedMetric, first_shown
from offbeat.verdicts.answers import QUANTIFIERS, LookAnswers, Quantifier
from offbeat.verdicts.average import LEAST_SEEDS, PairSample
from offbeat.verdicts.cost import Cost, log_ratio
from offbeat.verdicts.family import (
    COST_THAT_MATTERS,
    SHARE_THAT_MATTERS,
    Answers,
    SampledClaim,
    Verdicts,
    answer_claims,
    complete_seeds,
    judge_family,
)
from offbeat.verdicts.multiplicity import next_look, spent
from offbeat.verdicts.verdict import Verdict, experiment_verdict
from offbeat_papers.cells import Cell, study_cells
from offbeat_papers.rows import ResultRow, Results
from offbeat_papers.run import target_of
from offbeat_papers.study import COSTS, VALUES, Item, Number, PaperClaim, Size, Study

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
        planned: Number of its runs, including the runs without a row.
        limits: Limit of its runs in virtual seconds, by column.
        seeds: The seeds of the recipe.
    """

    study: Study
    name: str
    size: Size
    metric: str
    runs: ArmRows
    kinds: Mapping[str, ArmRows]
    targets: Mapping[str, float]
    planned: int
    limits: Mapping[str, float]
    seeds: range

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
        return sum(seed in self.seeds for runs in self.runs.values() for seed in runs)

    @property
    def unmeasured(self) -> list[float]:
        """Targets of the item that its rows have not measured."""
        if self.item.shows not in COSTS:
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


@dataclass(frozen=True)
class JudgedPair:
    """A pair of arms of a claim.

    Attributes:
        better: The arm that is said to be ahead.
        than: The other arm.
        seeds: The seeds that both arms have.
        advantages: The advantage in each seed whose two runs are of the same kind of processor; for a cost,
            the logarithm of the ratio. None means that neither arm reached the target.
        paper: The advantage by the paper's numbers, in the same unit; infinite if the other arm never reached
            the target. None means that the paper has no such numbers.
    """

    better: Arm
    than: Arm
    seeds: frozenset[int]
    advantages: Mapping[int, float | None]
    paper: float | None

    @property
    def columns(self) -> frozenset[str]:
        """The columns of its arms."""
        return frozenset((self.better[1], self.than[1]))

    def mean(self, seeds: range) -> float | None:
        """The mean advantage over some seeds; None where none of them has one."""
        found = [each for seed, each in self.advantages.items() if seed in seeds]
        if len(found) < LEAST_SEEDS or all(each is None for each in found):
            return None
        return fmean(each or 0.0 for each in found)


@dataclass(frozen=True)
class MeasuredClaim:
    """A claim with its measurements.

    Attributes:
        rows: The rows of its item.
        claim: The claim.
        by: What is compared.
        pairs: Its pairs of arms that run at the size.
        named: Number of pairs that the claim names, at any size.
    """

    rows: ItemRows
    claim: PaperClaim
    by: str
    pairs: tuple[JudgedPair, ...]
    named: int

    @property
    def question(self) -> Quantifier:
        """The pairs about which the claim is; with one pair all questions are one."""
        return self.claim.quantifier if len(self.pairs) > 1 else "average"

    @property
    def margin(self) -> float:
        """Least lead of the claimed arm, in the unit of advantages."""
        return log1p(self.claim.margin) if self.by in COSTS else self.claim.margin

    @property
    def matters(self) -> float | None:
        """Least difference that matters: a tenth of a cost, half a point of a share."""
        if self.by in COSTS:
            return COST_THAT_MATTERS
        metric = NamedMetric.of(self.rows.metric if self.by in VALUES else self.by)
        return SHARE_THAT_MATTERS if metric.is_share and self.by != "change" else None

    @cached_property
    def key(self) -> Hashable:
        """Key of a claim: claims that compare the same numbers are one claim."""
        targets = self.rows.targets if self.by in COSTS else {}
        pairs = frozenset(
            (p.better, p.than, targets.get(p.better[1]), targets.get(p.than[1])) for p in self.pairs
        )
        metric = self.rows.metric if self.by in (*COSTS, *VALUES) else None
        compared = self.by, metric, tuple(self.claim.over)
        return self.rows.study.name, self.rows.size, compared, self.claim.margin, self.question, pairs

    @cached_property
    def sampled(self) -> SampledClaim:
        """The claim with its pairs in blocks: of a column, or of several that pairs join."""
        block = _blocks([pair.columns for pair in self.pairs])
        return SampledClaim(
            self.key, self.rows.study.name,
            [PairSample(block[pair.better[1]], pair.advantages) for pair in self.pairs], self.rows.seeds,
            complete_seeds(self.rows.seeds.start, [pair.seeds for pair in self.pairs]),
            self.question, self.margin, self.matters,
        )  # fmt: skip


def _blocks(pairs: Sequence[frozenset[str]]) -> dict[str, str]:
    """By column the one that stands for all columns that pairs join with it."""
    block = {column: column for pair in pairs for column in pair}
    for pair in pairs:
        joined = {block[column] for column in pair}
        block = {column: min(joined) if own in joined else own for column, own in block.items()}
    return block


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its verdict and the answers to all questions.

    Attributes:
        measured: The claim and what was measured.
        looks: What each look answers.
        answers: The verdict by question.
        verdict: The verdict on what it says.
    """

    measured: MeasuredClaim
    looks: tuple[LookAnswers, ...]
    answers: Mapping[Quantifier, Verdict]
    verdict: Verdict

    @property
    def claim(self) -> PaperClaim:
        """The claim."""
        return self.measured.claim

    @property
    def by(self) -> str:
        """The measure by which the claim compares."""
        return self.measured.by

    @property
    def pairs(self) -> tuple[JudgedPair, ...]:
        """The pairs of the claim."""
        return self.measured.pairs

    @property
    def question(self) -> Quantifier:
        """The question that its verdict answers."""
        return self.measured.question

    @property
    def mixed(self) -> int:
        """Number of pairs that are left out, as too few of their seeds are of one kind of processor."""
        return sum(len(pair.seeds) >= LEAST_SEEDS > len(pair.advantages) for pair in self.pairs)

    @property
    def unreached(self) -> bool:
        """Whether in most pairs of runs neither reached the target: more seeds do not help."""
        seeds = [each for pair in self.pairs for each in pair.advantages.values()]
        return self.by in COSTS and 2 * seeds.count(None) > len(seeds)

    @property
    def last(self) -> LookAnswers | None:
        """Answers of the last look; None before the first."""
        return self.looks[-1] if self.looks else None

    @property
    def decided_at(self) -> int | None:
        """Seeds of the look whose p-value decided; None where the claim is not held and not refuted."""
        if self.verdict not in (Verdict.HELD, Verdict.NOT_HELD):
            return None
        sides = {
            look.seeds: look.sides(self.question).times(spent(look.level)).two_sided for look in self.looks
        }
        return min(sides, key=lambda seeds: sides[seeds])

    @property
    def seeds(self) -> range:
        """The seeds of the last look."""
        start = self.measured.rows.seeds.start
        return range(start, start + (self.last.seeds if self.last else 0))

    @property
    def effects(self) -> list[float]:
        """The mean advantage of each pair that has one, over the seeds of the last look."""
        return [mean for pair in self.pairs if (mean := pair.mean(self.seeds)) is not None]


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
        sum(cell.seed - first < cell.recipe.seeds for cell in planned),
        {cell.column: cell.recipe.until.seconds or 0.0 for cell in planned},
        range(first, first + count),
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
    return cells_of_item(study, name, cells)


def cells_of_item(study: Study, name: str, cells: Sequence[Cell]) -> list[Cell]:
    """The runs that an item needs: those of its table, and those of its claims."""
    arms = {(label, column) for label in study.item_labels(name) for column in study.item_columns(name)}
    for claim in study.items[name].claims:
        arms.update(arm for pair in claim_arms(study, name, claim) for arm in (*pair, *_bases(claim, *pair)))
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


def _bases(claim: PaperClaim, better: Arm, than: Arm) -> tuple[Arm, ...]:
    """Of a claim of gains the arms that the two of a pair are compared with, each in its column."""
    return ((claim.over[0], better[1]), (claim.over[-1], than[1])) if claim.over else ()


def _arm(text: str, column: str) -> Arm:
    label, at, own = text.partition("@")
    return label, own if at else column


def judge_items(items: Sequence[ItemRows]) -> list[JudgedItem]:
    """Judge items together, as the items of a paper are: the p-values are adjusted for all their claims.

    Columns and labels that do not run at an item's size are left out of the item's claims. Claims on
    generated data get no verdict. The claims of items that explain others form a separate family.
    """
    measured = [[measure_claim(rows, claim) for claim in rows.item.claims] for rows in items]
    every = [claim for claims in measured for claim in claims]
    answered = answer_claims([claim.sampled for claim in every])
    verdicts = [
        judge_family(
            [
                claim.sampled for claim in every
                if bool(claim.rows.item.explains) == cause and claim.rows.study.no_real_data is None
            ],
            answered,
        )
        for cause in (False, True)
    ]  # fmt: skip
    return [
        _judged_item(rows, [_judged(claim, answered, verdicts[bool(rows.item.explains)]) for claim in claims])
        for rows, claims in zip(items, measured, strict=True)
    ]


def judge_item(rows: ItemRows, family: Sequence[ItemRows] = ()) -> JudgedItem:
    """Judge an item.

    Args:
        rows: The item.
        family: Other items whose claims are judged together with the item's.
    """
    others = [other for other in family if (other.study.name, other.name) != (rows.study.name, rows.name)]
    return judge_items([rows, *others])[0]


def _judged_item(rows: ItemRows, claims: Sequence[JudgedClaim]) -> JudgedItem:
    if rows.study.no_real_data is not None:
        return JudgedItem(rows, tuple(claims), Verdict.NO_REAL_DATA)
    return JudgedItem(rows, tuple(claims), experiment_verdict([claim.verdict for claim in claims]))


def _judged(claim: MeasuredClaim, answered: Answers, verdicts: Verdicts) -> JudgedClaim:
    no_data = claim.rows.study.no_real_data is not None
    none = Verdict.NO_REAL_DATA if no_data else Verdict.NOT_RUN
    answers = {question: verdicts.get((claim.key, question), none) for question in QUANTIFIERS}
    if len(claim.pairs) == 1:
        answers = dict.fromkeys(QUANTIFIERS, answers["average"])
    return JudgedClaim(claim, answered.get(claim.key, ()), answers, answers[claim.question])


def undecided_cells(judged: JudgedItem, cells: Sequence[Cell]) -> list[Cell]:
    """The runs that bring the undecided claims of an item to their next look.

    Seeds are added to all pairs of a claim; a call that goes on chooses as the first one did, as a look is
    taken only when all of its runs are there.

    Args:
        judged: The item.
        cells: The runs, with as many seeds as are wanted at most.
    """
    wanted: dict[Arm, int] = {}
    for claim in judged.claims:
        if claim.verdict == Verdict.UNDECIDED and claim.last is not None:
            seeds = next_look(len(judged.rows.seeds), claim.last.seeds) or 0
            for pair in claim.pairs:
                for arm in (pair.better, pair.than):
                    wanted[arm] = max(seeds, wanted.get(arm, 0))
    begin = judged.rows.seeds.start
    return [cell for cell in cells if cell.seed - begin < wanted.get((cell.label, cell.column), 0)]


def unpaired_cells(judged: JudgedItem, cells: Sequence[Cell]) -> list[Cell]:
    """The runs of the pairs that are left out, because their runs are of different kinds of processor.

    Args:
        judged: The item.
        cells: The runs among which to choose.
    """
    wanted = {
        (arm, seed)
        for claim in judged.claims
        for pair in claim.pairs
        for seed in pair.seeds.difference(pair.advantages)
        for arm in (pair.better, pair.than, *_bases(claim.claim, pair.better, pair.than))
    }
    return [cell for cell in cells if ((cell.label, cell.column), cell.seed) in wanted]


def measure_claim(rows: ItemRows, claim: PaperClaim) -> MeasuredClaim:
    """Pair the runs of a claim's arms."""
    by = claim.by or rows.item.shows
    named = claim_arms(rows.study, rows.name, claim)
    arms = [pair for pair in named if all(arm in rows.runs for arm in (*pair, *_bases(claim, *pair)))]
    pairs = tuple(_measure_on_each_kind(rows, claim, by, *pair) for pair in arms)
    return MeasuredClaim(rows, claim, by, pairs, len(named))


def _measure_on_each_kind(rows: ItemRows, claim: PaperClaim, by: str, better: Arm, than: Arm) -> JudgedPair:
    """The pair, with the advantages of seeds in which all its runs were made on one kind of processor.

    Other kinds round differently. If a seed was made on several kinds, the first one counts.
    """
    advantages: dict[int, float | None] = {}
    for kind in rows.kinds:
        advantages = dict(_measure_gains(rows.on(kind), claim, by, better, than).advantages) | advantages
    pair = _measure_gains(rows, claim, by, better, than)
    return replace(pair, advantages={seed: advantages[seed] for seed in sorted(advantages)})


def _measure_gains(rows: ItemRows, claim: PaperClaim, by: str, better: Arm, than: Arm) -> JudgedPair:
    """The pair; of a claim of gains, the advantage of one arm over its base less the other's over its own.

    Where one of the two gains says nothing it counts 0, as it does by itself.
    """
    if not claim.over:
        return _measure_pair(rows, by, better, than)
    ahead, behind = (
        _measure_pair(rows, by, arm, base)
        for arm, base in zip((better, than), _bases(claim, better, than), strict=True)
    )
    own, other = ahead.advantages, behind.advantages
    advantages = {
        seed: None if own[seed] is None and other[seed] is None else (own[seed] or 0.0) - (other[seed] or 0.0)
        for seed in own
        if seed in other
    }
    paper = None if ahead.paper is None or behind.paper is None else ahead.paper - behind.paper
    paper = None if paper is None or isnan(paper) else paper
    return JudgedPair(better, than, ahead.seeds & behind.seeds, advantages, paper)


def _measure_pair(rows: ItemRows, by: str, better: Arm, than: Arm) -> JudgedPair:
    ahead, behind = rows.amounts(better, by), rows.amounts(than, by)
    seeds = [seed for seed in ahead if seed in behind]
    sign = _sign(rows, by)
    advantages = {seed: _advantage(ahead[seed], behind[seed], sign) for seed in seeds}
    paper = _paper_advantage(rows.item, by, better, than, sign)
    return JudgedPair(better, than, frozenset(seeds), advantages, paper)


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
