"""The second study's claims with their answers, by the rows of its runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import isfinite
from statistics import median

from offbeat.verdicts.average import Average
from offbeat_papers.arm_rows import ItemRows, bases_of, claim_arms, item_rows
from offbeat_papers.claim_pairs import JudgedPair, MeasuredClaim, measure_claim
from offbeat_papers.replication.design import (
    FEDAVG,
    FIRST_OF,
    SIZE,
    Reworded,
    fresh_cells,
    fresh_claims,
    fresh_study,
    load_design,
)
from offbeat_papers.replication.rule import (
    Answer,
    FreshClaim,
    answer_family,
    is_smaller,
    mean_effect,
)
from offbeat_papers.rows import Results
from offbeat_papers.study import COSTS, PaperClaim

MOST_MISSED = 0.1
"""Largest share of runs that miss the target if an effect is compared with the paper's."""


@dataclass(frozen=True)
class AnsweredClaim:
    """A claim with its answer.

    Attributes:
        item: The rows of its item.
        number: Its number in the item, from 1.
        claim: The claim as the study has it.
        reworded: How it is worded anew. None means as the study has it.
        pairs: Its pairs with the advantages in each seed.
        sampled: What the rule sees of it.
        answer: The answer.
    """

    item: ItemRows
    number: int
    claim: PaperClaim
    reworded: Reworded | None
    pairs: tuple[JudgedPair, ...]
    sampled: FreshClaim
    answer: Answer

    @property
    def says(self) -> str:
        """What it says."""
        return self.claim.says if self.reworded is None else self.reworded.says

    @property
    def by(self) -> str:
        """What is compared."""
        return self.claim.by or self.item.item.shows

    @property
    def is_decided(self) -> bool:
        """Whether it compares pairs, and the look is taken."""
        return self.sampled.is_complete and bool(self.pairs)

    @property
    def effect(self) -> Average | None:
        """The mean advantage, of a cost with all that each run spent; None without a look at pairs."""
        if not self.is_decided:
            return None
        if self.by not in COSTS:
            return mean_effect(self.sampled.pairs)
        return mean_effect([self._in_seeds(pair.whole) for pair in self.pairs])

    @property
    def effect_at_target(self) -> float | None:
        """The mean advantage at the target alone; None as for `effect`, and where no cost is compared."""
        if not self.is_decided or self.by not in COSTS:
            return None
        return mean_effect([self._in_seeds(pair.at_target) for pair in self.pairs]).mean

    @property
    def missed(self) -> float:
        """Of a cost, the share of its runs that missed the target; 0 for a value."""
        if self.by not in COSTS:
            return 0.0
        arms = {
            arm for p in self.pairs for arm in (p.better, p.than, *bases_of(self.claim, p.better, p.than))
        }
        runs = [climb for arm in arms for climb in self.item.climbs(arm, self.by).values()]
        return sum(not climb.costs[-1].reached for climb in runs) / max(1, len(runs))

    @property
    def paper(self) -> float | None:
        """The median advantage by the paper's numbers; None where it has none, or is never reached."""
        found = paper_effect(self.pairs)
        return None if found is None or not isfinite(found) else found

    @property
    def is_smaller(self) -> bool:
        """Whether the paper's effect lies above the interval of ours.

        An effect is bounded where runs miss the target: then the question is not answered.
        """
        if self.effect is None or self.missed > MOST_MISSED:
            return False
        return is_smaller(self.effect, paper_effect(self.pairs))

    @property
    def ahead(self) -> tuple[int, int]:
        """How many of its pairs, or of its settings, are ahead in the mean over seeds, and of how many."""
        if self.sampled.reached:
            half = self.sampled.seeds / 2
            return sum(n >= half for n in self.sampled.reached), len(self.sampled.reached)
        means = [mean_effect([pair], self.sampled.margin).mean for pair in self.sampled.pairs]
        return sum(mean > self.sampled.margin for mean in means), len(means)

    def _in_seeds(self, advantages: Mapping[int, float | None]) -> dict[int, float | None]:
        return {seed: advantages[seed] for seed in self.item.seeds if seed in advantages}


def paper_effect(pairs: Sequence[JudgedPair]) -> float | None:
    """The median of the paper's advantages over pairs; None where the paper has no numbers."""
    found = [pair.paper for pair in pairs if pair.paper is not None]
    return median(found) if found else None


def answer_papers(results: Results) -> dict[str, list[AnsweredClaim]]:
    """The answers to all claims of the studies of the design, by paper.

    Args:
        results: Where the rows of the second study are.
    """
    names = sorted(load_design().studies)
    found = {}
    for paper, studies in groupby(names, key=lambda name: name.partition("/")[0]):
        claims = [claim for name in studies for claim in _claims(name, results)]
        answers = answer_family([claim.sampled for claim in claims])
        found[paper] = [replace(claim, answer=answers[claim.sampled.key]) for claim in claims]
    return found


def _claims(name: str, results: Results) -> list[AnsweredClaim]:
    """The claims of a study, without their answers."""
    study, cells = fresh_study(name), fresh_cells(name)
    found = []
    for item, own in study.items.items():
        if claims := fresh_claims(own):
            rows = item_rows(study, item, SIZE, results, cells)
            found += [_claim(rows, number, claim) for number, claim in enumerate(claims, 1)]
    return found


def _claim(rows: ItemRows, number: int, claim: PaperClaim) -> AnsweredClaim:
    reworded = load_design().reworded_claim(rows.name, number)
    if reworded is not None:
        return AnsweredClaim(
            rows, number, claim, reworded, (), _reaches(rows, claim, reworded), Answer.NOT_RUN
        )
    measured = measure_claim(rows, claim)
    return AnsweredClaim(rows, number, claim, None, measured.pairs, _compared(rows, measured), Answer.NOT_RUN)


def _compared(rows: ItemRows, measured: MeasuredClaim) -> FreshClaim:
    """What the rule sees of a claim that compares pairs of arms."""
    pairs = [{s: p.advantages[s] for s in rows.seeds if s in p.advantages} for p in measured.pairs]
    paper = paper_effect(measured.pairs)
    matters = measured.matters
    if matters is not None and paper is not None and isfinite(paper):
        matters = max(matters, abs(paper) / 3)
    seeds = len(rows.seeds)
    return FreshClaim(measured.asked, pairs, measured.question, measured.margin, matters, seeds=seeds)


def _reaches(rows: ItemRows, claim: PaperClaim, reworded: Reworded) -> FreshClaim:
    """What the rule sees of the claim that a label reaches the target in every setting."""
    columns = dict.fromkeys(better[1] for better, _ in claim_arms(rows.study, rows.name, claim))
    arms = [rows.runs.get((reworded.reaches, column), {}) for column in columns]
    targets = rows.targets
    reached = []
    for column, runs in zip(columns, arms, strict=True):
        costs = [row.cost("time", rows.metric, targets[column]) for row in runs.values()]
        reached.append(sum(cost is not None and cost.reached for cost in costs))
    seeds = min((len(runs) for runs in arms), default=0)
    key = rows.study.name, rows.name, reworded.says
    # Before all seeds are there, there is no look.
    return FreshClaim(key, (), "every", reached=reached, seeds=seeds if seeds == len(rows.seeds) else 0)


@dataclass(frozen=True)
class FirstOfEffect:
    """What waiting for the first clients only does, in a study.

    Attributes:
        study: The study.
        columns: Number of its settings.
        effect: The mean logarithm of the time of `FEDAVG` over that of `FIRST_OF`, over levels.
    """

    study: str
    columns: int
    effect: Average


def first_of_effects(results: Results) -> list[FirstOfEffect]:
    """How much faster `FIRST_OF` is than `FEDAVG`, by study that has all runs of both."""
    found = []
    for name in load_design().studies:
        study, cells = fresh_study(name), fresh_cells(name)
        columns = list(dict.fromkeys(cell.column for cell in cells if cell.label == FIRST_OF))
        item = next((item for item, own in study.items.items() if not own.explains), None)
        if not columns or item is None:
            continue
        rows = item_rows(study, item, SIZE, results, [c for c in cells if c.label in (FEDAVG, FIRST_OF)])
        claim = PaperClaim(says="ours", better=FIRST_OF, than=[FEDAVG], by="time", columns=columns)
        sampled = _compared(rows, measure_claim(rows, claim))
        if sampled.is_complete:
            found.append(FirstOfEffect(name, len(columns), mean_effect(sampled.pairs)))
    return found
