"""What the rows show of the papers together, as the texts and the table of the page of all papers."""

from collections.abc import Callable, Sequence
from math import exp, log
from statistics import median
from textwrap import fill

from offbeat.verdicts.verdict import Verdict
from offbeat_papers.claims import early_runs
from offbeat_papers.experiments import load_experiments
from offbeat_papers.findings_numbers import Findings
from offbeat_papers.paper_page import with_numbers
from offbeat_papers.texts import Grid

_WIDTH = 120
_SHOWN = (1.1, 1.5, 2.0, 4.0)
"""Effects for which the page gives the share of the claims that would have found them."""

_SCOPE = (
    "- **Scope.** We repeated the tables and figures of four papers, at a size that two cores finish; one "
    "also with the paper's model, on a GPU. Each study says what is smaller.\n"
    "- **Methods.** Two methods are compared on runs of the same seed. One rule judges all claims; we "
    "simulated the rule and then froze it. {early}\n"
    "- **What was easy.** The papers print the equations of the algorithms and the numbers of the tables.\n"
    "- **What was hard.** The papers leave open how many devices train at once, the speeds in seconds, and "
    "the hyper-parameters of the methods that they compare with.\n"
    "- **Limits.** Models are smaller and images are fewer than in the papers. Seeds are few, and runs end "
    "early: many do not reach a target, and then a claim on time says little. The runs come from several "
    "kinds of processor; runs of different kinds are never paired. A run on a GPU does not repeat bit by "
    "bit.\n"
    "- **The authors** have not been asked yet."
)


def scope_text(found: Findings) -> str:
    """What was repeated, how, and its limits."""
    return _SCOPE.format(early=_early_text(found))


def _early_text(found: Findings) -> str:
    """How many decided claims rest on runs from before the rule was frozen."""
    decided = [claim for claim in found.claims if claim.verdict in (Verdict.HELD, Verdict.NOT_HELD)]
    early = [early_runs(claim) / len(claim.runs) for claim in decided]
    both = sum(0 < share < 1 for share in early)
    return (
        f"Some runs are older, and verdicts on them are exploratory: of the {len(decided)} decided claims, "
        f"{sum(share == 1 for share in early)} rest on such runs only, {both} on such "
        f"runs and later ones, {sum(share == 0 for share in early)} on later ones only."
    )


def numbered(texts: Sequence[str]) -> str:
    """Some texts as a numbered list."""
    return "\n".join(
        fill(f"{k}. {text}", _WIDTH, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False)
        for k, text in enumerate(texts, 1)
    )


def sentences(found: Findings) -> list[str]:
    """The counts, and what each paper's claims come to."""
    counts = {verdict: sum(claim.verdict == verdict for claim in found.claims) for verdict in Verdict}
    several = [claim for claim in found.claims if len(claim.pairs) > 1]
    every = sum(claim.answers["every"] == Verdict.HELD for claim in several)
    first = (
        f"Of {len(found.claims)} distinct claims with enough runs on real data, {counts[Verdict.HELD]} are "
        f"held, {counts[Verdict.NOT_HELD]} are not held, {counts[Verdict.NO_DIFFERENCE]} show no "
        f"difference, and {counts[Verdict.UNDECIDED]} are undecided. Of {len(several)} claims on several "
        f"pairs of methods, {every} hold for every single pair."
    )
    return [first, *(_told(found, name, paper.finding) for name, paper in load_experiments().papers.items())]


def _told(found: Findings, name: str, text: str) -> str:
    """A text of a paper with the numbers of its rows, in one line."""
    own = [each for each in found.judged if each.experiment.paper == name]
    return " ".join(with_numbers(text, own).split())


def effects_grid(found: Findings) -> Grid:
    """By paper the pairs of times and of accuracies: how many have the paper's direction, and the medians."""
    heads = [
        "paper", "pairs of times", "same direction", "median in the paper", "here",
        "pairs of accuracies", "same direction", "median in the paper", "here",
    ]  # fmt: skip
    times, points = found.pairs(found.costs), found.pairs(found.accuracies)
    rows = [
        [paper.title, *_direction(times.get(name, []), _ratio), *_direction(points.get(name, []), _points)]
        for name, paper in load_experiments().papers.items()
        if name in times or name in points
    ]
    return [heads, *rows]


def _direction(pairs: Sequence[tuple[float, float]], text: Callable[[float], str]) -> list[str]:
    if not pairs:
        return ["0", "–", "–", "–"]
    same = sum(paper * ours > 0 for paper, ours in pairs) / len(pairs)
    return [str(len(pairs)), f"{same:.0%}", *(text(median(own)) for own in zip(*pairs, strict=True))]


def _ratio(value: float) -> str:
    return f"{exp(value):.2f}x"


def _points(value: float) -> str:
    return f"{100 * value:+.1f} points"


def never_text(found: Findings) -> str:
    return (
        f"The figure leaves out {found.never} pairs of times of which one method never reaches the target "
        "in the paper, the pairs of which the paper gives no numbers, and those of which neither method "
        "reaches the target here."
    )


def power_text(found: Findings) -> str:
    sizes, looked = found.detectable(), len(found.looked_at)
    if not looked:
        return "No claim on a cost has enough runs yet."
    powers = ", ".join(
        f"{sum(size <= log(effect) for size in sizes) / looked:.0%} would have shown {effect:g}x"
        for effect in _SHOWN
    )
    return (
        "The figure says which true effects the runs would have found in four of five cases, at the level "
        f"spent. Of {looked} claims on a cost, {powers}. For {looked - len(sizes)} claims no such effect "
        "can be given, because too few runs reached the target or all seeds agree. The others need still "
        "larger effects."
    )
