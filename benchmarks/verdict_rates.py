"""Simulate the rule of verdicts: how often it is wrong, and how often it finds an effect.

python benchmarks/verdict_rates.py [--claims 1000] [--out benchmarks/tables/verdict_rates.md]

Claims are drawn whose effects are known, and judged by the functions that judge the papers' claims
(`offbeat.verdicts.answers`), with looks at 3, 5, 8 and 10 seeds. The page of
studies has the file that `--out` writes.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from time import process_time

import numpy as np
from numpy.typing import NDArray

from offbeat.verdicts.answers import LookAnswers, Quantifier, equal_over_looks, over_looks
from offbeat.verdicts.average import PairSample
from offbeat.verdicts.multiplicity import LEVEL, false_discovery, looks
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
PLANNED = looks(3)
VERDICTS = ("held", "not held", "no difference")
FAR = 50.0
MIXED = 20


def draw(rng: np.random.Generator, law: str, shape: tuple[int, int], effects: Array) -> list[PairSample]:
    """A claim of pairs that share half of their variance in a column; columns differ in scale by e^(N/2).

    Effects are in the median deviation of a pair.
    """
    columns, others = shape
    scale = np.exp(0.5 * rng.standard_normal((columns, 1, 1)))
    seeds = max(PLANNED)
    shared, own = (LAWS[law](rng, (columns, width, seeds)) for width in (1, others))
    values = scale * np.sqrt(0.5) * (shared + own) + effects.reshape(columns, others, 1)
    return [
        PairSample(column, dict(enumerate(map(float, row))))
        for column, rows in enumerate(values)
        for row in rows
    ]


@dataclass(frozen=True)
class Case:
    """Claims of one kind, and which verdicts of them are counted.

    Attributes:
        name: What it is, and what is counted.
        question: The question that is asked.
        verdicts: The verdicts that are counted, of `VERDICTS`.
        effects: Effect of each pair in its deviations, by the claim's shape.
        matters: Least size of a difference that matters, in deviations.
    """

    name: str
    question: Quantifier
    verdicts: tuple[str, ...]
    effects: Callable[[tuple[int, int]], Array]
    matters: float | None = None


def equal_effects(effect: float) -> Callable[[tuple[int, int]], Array]:
    """The same effect in every pair."""
    return lambda shape: np.full(shape[0] * shape[1], effect)


def but_one(shape: tuple[int, int]) -> Array:
    """Pairs far ahead, but one without an effect."""
    return np.array([0.0, *[FAR] * (shape[0] * shape[1] - 1)])


def halves(shape: tuple[int, int]) -> Array:
    """Half of the pairs a deviation ahead, the others as much behind; of an odd number one without effect."""
    pairs = shape[0] * shape[1]
    return np.array([1.0] * (pairs // 2) + [0.0] * (pairs % 2) + [-1.0] * (pairs // 2))


NO_EFFECT = equal_effects(0.0)
WRONG = (
    Case("on average, no effect: held or not held", "average", ("held", "not held"), NO_EFFECT),
    Case("on average, half of the pairs ahead: held or not held", "average", ("held", "not held"), halves),
    Case("every pair, one of them without an effect: held", "every", ("held",), but_one),
    Case("every pair, no effect: not held", "every", ("not held",), NO_EFFECT),
    Case("most pairs, no effect: held or not held", "most", ("held", "not held"), NO_EFFECT),
    Case("most pairs, half of them ahead: held or not held", "most", ("held", "not held"), halves),
    Case("some pair, no effect: held", "some", ("held",), NO_EFFECT),
    Case("on average, ahead by what matters (half a deviation): no difference", "average", ("no difference",),
         equal_effects(0.5), 0.5),
)  # fmt: skip
POWER = tuple(
    Case(f"{name}, ahead by {effect:g} sd: held", question, ("held",), equal_effects(effect))
    for question, name in (("average", "on average"), ("every", "every pair"), ("most", "most pairs"))
    for effect in (0.5, 1.0, 2.0)
) + tuple(
    Case(f"on average, no effect, {size:g} sd matter: no difference", "average", ("no difference",),
         NO_EFFECT, size)
    for size in (0.5, 1.0)
)  # fmt: skip


def judged(pairs: Sequence[PairSample], case: Case) -> Array:
    """P-values of held, not held and no difference, by look: of that look and the ones before it."""
    taken: list[LookAnswers] = []
    for seeds, level in PLANNED.items():
        first = [PairSample(p.block, {s: v for s, v in p.advantages.items() if s < seeds}) for p in pairs]
        taken.append(LookAnswers(first, seeds, level, matters=case.matters))
    found = []
    for number in range(len(taken)):
        sides = over_looks(taken[: number + 1], case.question)
        same = 1.0 if case.matters is None else equal_over_looks(taken[: number + 1], case.question)
        found.append((2 * sides.ahead, 2 * sides.behind, same))
    return np.array(found)


def rates(claims: int, law: str, shape: tuple[int, int], case: Case) -> list[float]:
    """Share of claims that get one of the case's verdicts, by look."""
    rng = np.random.default_rng([list(LAWS).index(law), *shape])
    places = [VERDICTS.index(verdict) for verdict in case.verdicts]
    said = [
        (judged(draw(rng, law, shape, case.effects(shape)), case)[:, places] <= LEVEL).any(axis=1)
        for _ in range(claims)
    ]
    return [float(share) for share in np.mean(said, axis=0)]


def _cell(claims: int, law: str, shape: tuple[int, int], case: Case) -> tuple[str, str]:
    """A case's rates, after the first look and the last, and after each."""
    if shape == (1, 1) and (case.question != "average" or case.effects is halves):
        return "", ""  # of one pair all questions are one
    shares = [100 * share for share in rates(claims, law, shape, case)]
    return f"{shares[0]:.1f} → {shares[-1]:.1f} %", " → ".join(f"{share:.0f}" for share in shares) + " %"


def table(head: str, claims: int, cases: Sequence[Case], laws: Sequence[str], each_look: bool) -> str:
    """A row for each case and law, a column for each number of pairs."""
    rows = [
        [
            head,
            "law",
            *(f"{columns * others} pair{'s' * (columns * others > 1)}" for columns, others in SHAPES),
        ]
    ]
    for case in cases:
        for law in laws:
            rows.append([case.name, law, *(_cell(claims, law, shape, case)[each_look] for shape in SHAPES)])
    return markdown(rows)


def family_table(claims: int) -> str:
    """False discoveries among forty claims of which half have no effect and half one deviation."""
    rows = [
        ["forty claims, half without an effect, half ahead by a deviation", "law", "3 seeds", "all looks"]
    ]
    families = max(1, claims // (2 * MIXED))
    none = np.arange(2 * MIXED) % 2 == 0
    for law in LAWS:
        rng = np.random.default_rng([list(LAWS).index(law)])
        wrong, found = [], []
        for _ in range(families):
            values = [
                judged(draw(rng, law, shape, equal_effects(float(number % 2))(shape)), WRONG[0])
                for number in range(2 * MIXED)
                for shape in [SHAPES[number // 2 % len(SHAPES)]]
            ]
            p = np.array(values)[:, [0, -1], :2].min(axis=2)
            said = np.array([false_discovery([min(1.0, each) for each in look]) for look in p.T]) <= LEVEL
            wrong.append((said & none).sum(axis=1) / np.maximum(1, said.sum(axis=1)))
            found.append(said[:, ~none].mean(axis=1))
        for name, shares in (("verdicts that are wrong", wrong), ("effects that are found", found)):
            rows.append([name, law, *(f"{100 * share:.1f} %" for share in np.mean(shares, axis=0))])
    return markdown(rows)


def tables(claims: int) -> str:
    """All tables as Markdown."""
    head = f"{claims:,} claims of each kind (`python benchmarks/verdict_rates.py --claims {claims}`).\n"
    wrong = table("wrong verdicts: at 3 seeds → at all looks", claims, WRONG, list(LAWS), each_look=False)
    power = table("right verdicts: at 3 → 5 → 8 → 10 seeds", claims, POWER, ["normal"], each_look=True)
    return "\n".join([head, wrong, power, family_table(2 * claims)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--claims", type=int, default=1000, help="claims of each kind")
    parser.add_argument("--out", type=Path, help="file into which the tables are written")
    args = parser.parse_args()
    begin = process_time()
    text = tables(args.claims)
    print(text)
    print(f"{process_time() - begin:.0f} processor seconds")
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
