"""Items judged by their rows: a verdict on each claim, with the answers it rests on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offbeat.verdicts.answers import QUANTIFIERS, LookAnswers, Quantifier
from offbeat.verdicts.average import LEAST_SEEDS
from offbeat.verdicts.family import (
    Answers,
    Verdicts,
    answer_claims,
    judge_family,
)
from offbeat.verdicts.multiplicity import next_look, spent
from offbeat.verdicts.verdict import Verdict, experiment_verdict
from offbeat_papers.arm_rows import Arm, ItemRows, bases_of
from offbeat_papers.cells import Cell
from offbeat_papers.claim_pairs import JudgedPair, MeasuredClaim, measure_claim
from offbeat_papers.rows import ResultRow
from offbeat_papers.study import COSTS, PaperClaim


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

    def compared(self, pair: JudgedPair) -> tuple[Arm, ...]:
        """The arms of a pair, and of a claim of gains those that they are compared with."""
        return (pair.better, pair.than, *bases_of(self.claim, pair.better, pair.than))

    @property
    def least_p_at(self) -> int | None:
        """Seeds of the look with the least p-value; None where the claim is not held and not refuted."""
        return self.decided_at(self.question)

    def decided_at(self, question: Quantifier) -> int | None:
        """Seeds of the look with the least p-value for a question; None where it is not decided."""
        if self.answers[question] not in (Verdict.HELD, Verdict.NOT_HELD):
            return None
        sides = {look.seeds: look.sides(question).times(spent(look.level)).two_sided for look in self.looks}
        return min(sides, key=lambda seeds: sides[seeds])

    @property
    def seeds(self) -> range:
        """The seeds of the last look."""
        start = self.measured.rows.seeds.start
        return range(start, start + (self.last.seeds if self.last else 0))

    @property
    def runs(self) -> list[ResultRow]:
        """The rows that the last look compared, each once."""
        rows = self.measured.rows.kinds
        found = {
            (arm, seed, kind): rows[kind][arm][seed]
            for pair in self.pairs
            for seed, kind in pair.kinds.items()
            if seed in self.seeds
            for arm in self.compared(pair)
        }
        return [*found.values()]

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

    Claims whose runs end before the target are left out, as more seeds do not help them. Seeds are added to
    all pairs of a claim; a call that goes on chooses as the first one did, as a look is taken only when all
    of its runs are there.

    Args:
        judged: The item.
        cells: The runs, with as many seeds as are wanted at most.
    """
    wanted: dict[Arm, int] = {}
    for claim in judged.claims:
        if claim.verdict == Verdict.UNDECIDED and claim.last is not None and not claim.unreached:
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
        for arm in (pair.better, pair.than, *bases_of(claim.claim, pair.better, pair.than))
    }
    return [cell for cell in cells if ((cell.label, cell.column), cell.seed) in wanted]
