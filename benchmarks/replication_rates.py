"""Simulate the rule of the second study: how often it is wrong, and how often it finds an effect.

python benchmarks/replication_rates.py [--claims 2000] [--out benchmarks/tables/replication_rates.md]

Claims whose effects are known are judged by the functions that judge the papers' claims
(`offbeat_papers.replication.rule`), in one look. Columns of a seed correlate by ρ. The page of studies
has the file that `--out` writes.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, sqrt
from pathlib import Path
from time import process_time

import numpy as np
from numpy.typing import NDArray

from offbeat.verdicts.answers import Quantifier
from offbeat.verdicts.average import PairSample, average, column_correlation
from offbeat.verdicts.cost import Cost
from offbeat.verdicts.multiplicity import LEVEL
from offbeat_papers.levels import LEVELS, Climb, fair_advantage, level_advantage
from offbeat_papers.replication.rule import Advantages, Answer, FreshClaim, answer_family
from offbeat_papers.texts import markdown

Array = NDArray[np.float64]
SHAPES = ((1, 1), (1, 3), (2, 2), (3, 3), (9, 3))
"""Columns, and pairs of each, as the studies have them: 1, 3, 4, 9 and 27 pairs."""
LAWS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy tails": lambda rng, shape: rng.standard_t(3, shape) / sqrt(3),
    "skewed": lambda rng, shape: rng.exponential(1, shape) - 1,
}
"""Laws of mean 0 and variance 1: normal, Student's with 3 degrees of freedom, exponential."""
SEEDS = (6, 8, 10, 16, 20)
"""Numbers of seeds of the studies."""
CORRELATIONS = (0.0, 0.3, 0.5)
FAR = 50.0


def draw(
    rng: np.random.Generator, law: str, shape: tuple[int, int], seeds: int, correlation: float, effects: Array
) -> list[Advantages]:
    """A claim's pairs. Half of a pair's variance is its column's; columns differ in scale by e^(N/2).

    The means of two columns in a seed correlate by `correlation`. Effects are in median deviations of a pair.
    """
    columns, others = shape
    shared = min(0.5, correlation * (0.5 + 0.5 / others))
    parts = (
        sqrt(shared) * LAWS[law](rng, (1, 1, seeds)),
        sqrt(0.5 - shared) * LAWS[law](rng, (columns, 1, seeds)),
        sqrt(0.5) * LAWS[law](rng, (columns, others, seeds)),
    )
    scale = np.exp(0.5 * rng.standard_normal((columns, 1, 1)))
    values = scale * sum(parts) + effects.reshape(columns, others, 1)
    return [dict(enumerate(map(float, row))) for column in values for row in column]


def draw_censored(
    rng: np.random.Generator,
    shape: tuple[int, int],
    seeds: int,
    longer: float = 1.0,
    advantage: Callable[[Climb, Climb], float | None] = fair_advantage,
) -> list[Advantages]:
    """Pairs of runs without a difference, of which many miss levels.

    The logarithm of the time to a level grows from -1 to 0.6 on average. The claimed run ends at 0, and the
    others end at the logarithm of `longer`.
    """
    middle, found = np.linspace(-1.0, 0.6, len(LEVELS)), list[Advantages]()
    for _ in range(shape[0]):
        world = 0.5 * rng.standard_normal((seeds, 1))
        climbs = []
        for end in (1.0, *[longer] * shape[1]):
            steps = np.cumsum(rng.exponential(0.1, (seeds, len(LEVELS))) - 0.1, axis=1)
            times = middle + world + steps + 0.4 * rng.standard_normal((seeds, 1))
            climbs.append([_climb(row, end) for row in times])
        found += [
            {seed: advantage(climbs[0][seed], other[seed]) for seed in range(seeds)} for other in climbs[1:]
        ]
    return found


def _climb(times: Array, end: float) -> Climb:
    amounts = [exp(float(t)) for t in np.maximum.accumulate(times)]
    return Climb(tuple(Cost(min(t, end), t <= end) for t in amounts), end)


@dataclass(frozen=True)
class Case:
    """Claims of one kind, and the answers to them that are counted.

    Attributes:
        name: What it is, and what is counted.
        question: The question that is asked.
        counted: The answers that are counted.
        effects: Effect of each pair in its deviations, by the claim's shape.
        matters: Least size of a difference that matters, in deviations.
    """

    name: str
    question: Quantifier
    counted: tuple[Answer, ...]
    effects: Callable[[tuple[int, int]], Array]
    matters: float | None = None


def equal_effects(effect: float) -> Callable[[tuple[int, int]], Array]:
    """The same effect in every pair."""
    return lambda shape: np.full(shape[0] * shape[1], effect)


def halves(shape: tuple[int, int]) -> Array:
    """Half of the pairs a deviation ahead, the others as much behind; of an odd number one without effect."""
    pairs = shape[0] * shape[1]
    return np.array([1.0] * (pairs // 2) + [0.0] * (pairs % 2) + [-1.0] * (pairs // 2))


def just_not_most(shape: tuple[int, int]) -> Array:
    """Half of the pairs far ahead, the others without an effect: not most are ahead."""
    pairs = shape[0] * shape[1]
    return np.array([FAR] * (pairs // 2) + [0.0] * (pairs - pairs // 2))


NO_EFFECT = equal_effects(0.0)
FOUND = Answer.CONFIRMED, Answer.CONTRADICTED
AVERAGE = Case("on average, no effect: confirmed or contradicted", "average", FOUND, NO_EFFECT)
WRONG = (
    Case("on average, half of the pairs ahead: confirmed or contradicted", "average", FOUND, halves),
    Case("every pair, no effect: contradicted", "every", FOUND, NO_EFFECT),
    Case("most pairs, no effect: confirmed or contradicted", "most", FOUND, NO_EFFECT),
    Case("most pairs, half of them far ahead: confirmed", "most", FOUND[:1], just_not_most),
    Case("some pair, no effect: confirmed or contradicted", "some", FOUND, NO_EFFECT),
    Case("on average, ahead by what matters (half a deviation): no difference", "average",
         (Answer.NO_DIFFERENCE,), equal_effects(0.5), 0.5),
)  # fmt: skip
POWER = (
    *(Case(f"{name}, ahead by {effect:g} sd: confirmed", question, FOUND[:1], equal_effects(effect))
      for question, name in (("average", "on average"), ("most", "most pairs"), ("some", "some pair"))
      for effect in (0.5, 1.0)),
    Case("every pair, one of them behind by 2 sd: contradicted", "every", FOUND[1:],
         lambda shape: np.array([-2.0, *[1.0] * (shape[0] * shape[1] - 1)])),
    Case("on average, no effect, 0.5 sd matter: no difference", "average", (Answer.NO_DIFFERENCE,),
         NO_EFFECT, 0.5),
)  # fmt: skip


def rate(claims: int, case: Case, draws: Callable[[np.random.Generator], list[Advantages]]) -> str:
    """Share of claims that get one of the case's answers, each judged by itself."""
    counted = 0
    for number in range(claims):
        pairs = draws(np.random.default_rng(number))
        claim = FreshClaim("claim", pairs, case.question, 0.0, case.matters, seeds=len(pairs[0]))
        counted += answer_family([claim])["claim"] in case.counted
    return f"{100 * counted / claims:.1f} %"


def rates(claims: int, case: Case, law: str, seeds: int, correlation: float) -> list[str]:
    """The rate at each shape; empty where the case or the correlation has no meaning."""
    found = []
    for shape in SHAPES:
        alone = shape == (1, 1) and (case.question != "average" or case.effects is halves)
        if alone or (shape[0] == 1 and correlation):
            found.append("")
            continue
        drawn = partial(
            draw, law=law, shape=shape, seeds=seeds, correlation=correlation, effects=case.effects(shape)
        )
        found.append(rate(claims, case, drawn))
    return found


def _shapes() -> list[str]:
    return [f"{c * o} pair{'s' * (c * o > 1)}" for c, o in SHAPES]


def average_table(claims: int) -> str:
    """False verdicts on the mean over pairs, by law, correlation and number of seeds."""
    rows = [[AVERAGE.name, "seeds", "ρ", *_shapes()]]
    for law in LAWS:
        for seeds in SEEDS:
            for rho in CORRELATIONS:
                rows.append([law, str(seeds), f"{rho:g}", *rates(claims, AVERAGE, law, seeds, rho)])
    for seeds in SEEDS:
        drawn = [partial(draw_censored, shape=shape, seeds=seeds) for shape in SHAPES]
        rows.append(
            ["levels that runs miss", str(seeds), "", *(rate(claims, AVERAGE, each) for each in drawn)]
        )
    return markdown(rows)


def rejected_table(claims: int) -> str:
    """False verdicts of the test of the first study, and of advantages with all that each run spent."""
    rows = [["what the rule does not do, ten seeds, no effect", "ρ", *_shapes()]]
    for rho in CORRELATIONS:
        found = []
        for shape in SHAPES:
            p = [_first_study(np.random.default_rng(n), shape, rho) for n in range(claims)]
            found.append("" if shape[0] == 1 and rho else f"{100 * np.mean(np.array(p) <= LEVEL):.1f} %")
        rows.append(["Welch's t over columns, with the estimated ρ, normal", f"{rho:g}", *found])
    for name, rule in (("costs beyond the shorter run's end", level_advantage), ("limited", fair_advantage)):
        drawn = [
            partial(draw_censored, shape=shape, seeds=10, longer=3.0, advantage=rule) for shape in SHAPES
        ]
        text = f"the others run thrice as long, {name}"
        rows.append([text, "", *(rate(claims, AVERAGE, each) for each in drawn)])
    return markdown(rows)


def _first_study(rng: np.random.Generator, shape: tuple[int, int], correlation: float) -> float:
    """The p-value of the first study's test of a mean over pairs without an effect."""
    drawn = draw(rng, "normal", shape, 10, correlation, NO_EFFECT(shape))
    pairs = [PairSample(number // shape[1], pair) for number, pair in enumerate(drawn)]
    found = average(pairs, column_correlation([pairs]))
    return 1.0 if found is None else found.sides().two_sided


def case_table(head: str, claims: int, cases: Sequence[Case], laws: Sequence[str], seeds: int) -> str:
    """A row for each case, law and correlation; a column for each number of pairs."""
    rows = [[f"{head}, {seeds} seeds", "law", "ρ", *_shapes()]]
    for case in cases:
        for law in laws:
            for rho in (0.0, 0.5):
                rows.append([case.name, law, f"{rho:g}", *rates(claims, case, law, seeds, rho)])
    return markdown(rows)


def family_table(families: int) -> str:
    """False discoveries among forty claims of which half have no effect and half one deviation."""
    rows = [["forty claims, half without an effect, half ahead by a deviation; ten seeds, ρ = 0.3",
             *LAWS]]  # fmt: skip
    found: dict[str, list[str]] = {"verdicts that are wrong": [], "effects that are found": []}
    for law in LAWS:
        wrong, right = [], []
        for family in range(families):
            rng = np.random.default_rng([family, list(LAWS).index(law)])
            claims = [
                FreshClaim(n, draw(rng, law, s, 10, 0.3, equal_effects(float(n % 2))(s)), seeds=10)
                for n in range(40)
                for s in [SHAPES[n // 2 % len(SHAPES)]]
            ]
            said = {key: answer for key, answer in answer_family(claims).items() if answer in FOUND}
            false = [key for key, answer in said.items() if key % 2 == 0 or answer == Answer.CONTRADICTED]
            wrong.append(len(false) / max(1, len(said)))
            right.append(sum(key % 2 for key in said) / 20)
        for name, shares in zip(found, (wrong, right), strict=True):
            found[name].append(f"{100 * float(np.mean(shares)):.1f} %")
    return markdown([*rows, *([name, *shares] for name, shares in found.items())])


def tables(claims: int) -> str:
    """All tables as Markdown."""
    head = f"{claims:,} claims of each kind (`python benchmarks/replication_rates.py --claims {claims}`).\n"
    wrong = case_table("wrong verdicts", claims, WRONG, list(LAWS), 8)
    power = case_table("right verdicts", claims, POWER, ["normal"], 10)
    family = family_table(max(1, claims // 10))
    return "\n".join([head, average_table(claims), rejected_table(claims), wrong, power, family])


def main() -> None:
    """Print the tables, or write them into a page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--claims", type=int, default=2000, help="claims of each kind")
    parser.add_argument("--out", type=Path, help="file into which the tables are written")
    given = parser.parse_args()
    began = process_time()
    text = tables(given.claims)
    if given.out is None:
        print(text)
    else:
        given.out.write_text(text, encoding="utf-8")
    print(f"{process_time() - began:.0f} processor seconds")


if __name__ == "__main__":
    main()
