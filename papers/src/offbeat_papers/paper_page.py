"""The page of one paper: what its gain consists of, what the rows show, its figures and ten of its claims."""

import re
from collections.abc import Iterable, Iterator, Sequence
from textwrap import fill

from offbeat.verdicts.verdict import Verdict
from offbeat_papers.arm_rows import ItemRows
from offbeat_papers.experiments import JudgedExperiment, Paper
from offbeat_papers.judge import JudgedClaim, JudgedItem
from offbeat_papers.provenance import MARK, uncommitted
from offbeat_papers.study import COSTS
from offbeat_papers.texts import (
    ASKED,
    NO_EFFECT,
    claim_name,
    effect_in_prose,
    markdown,
    mean_effect,
    paper_effect,
    reached_text,
    what_is_shown,
)

_EFFECT = re.compile(r"\{([+-])([\w-]+)#([1-9]\d*)\.(mean|median|least|largest)\}")
_ANSWER = re.compile(r"\{([\w-]+)#([1-9]\d*)\.(verdict|reached|leader|others)\}")
_LINK = re.compile(r"\]\((?=[\w-]+\.md)")
_WIDTH = 120
CLAIM_HEADS = ["experiment", "claim", "in the paper", "here", "verdict"]
"""Heads of `claim_row`."""
IMAGES = "images"
"""Folder of a page's figures, beside the page."""
OURS = "ours: "
"""First words of items and claims that are not the paper's."""


def render_paper(paper: Paper, judged: Sequence[JudgedExperiment], page: str = "papers.md") -> str:
    """The page of a paper as Markdown.

    Args:
        paper: The paper.
        judged: Its experiments.
        page: File of the page of all papers, one folder above.
    """
    parts = [
        f"# {paper.title}",
        "After this page you can say what our runs show about this paper, and repeat the runs of its most "
        f"important claims. `offbeat reproduce --page docs/{page}` writes the page.",
        *_prose("What its gain consists of", paper.gain, judged),
        *_prose("What the rows show", paper.rows, judged),
        *_figures(paper, judged),
        *_claims(paper, judged),
        "## Where to go on",
        "- [All claims](../tables.md#claims): every claim of the four papers, and our own tests of causes.\n"
        f"- [Do the papers hold?](../{page}): what follows from all papers.\n"
        "- [The rule of the verdicts](../studies.md#when-a-claim-holds).",
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _claims(paper: Paper, judged: Sequence[JudgedExperiment]) -> Iterator[str]:
    """The claims that the page has, as far as there are items of theirs."""
    items = {item.rows.name: item for each in judged for item in each.items}
    named = [(name, int(number)) for name, _, number in (each.partition("#") for each in paper.claims)]
    found = [(items[name], items[name].claims[number - 1]) for name, number in named if name in items]
    if not found:
        return
    yield "## Its most important claims"
    yield (
        "For times, the effect of a claim is a ratio: how many times as long the second method takes. For "
        "other numbers, the effect is a difference: how far the first method is ahead. It is the mean over "
        "the claim's pairs of methods, here with its 95 % interval. The verdict is about that mean, "
        f"unless the brackets name another question. {MARK}: some of the runs are from commits that nobody "
        "can check out. `offbeat reproduce PAPER/ITEM` makes the runs."
    )
    yield markdown([CLAIM_HEADS, *(claim_row(item.rows.full_name, item, claim) for item, claim in found)])


def figure_name(rows: ItemRows) -> str:
    """Name of the file of an item's figure."""
    return f"{rows.full_name.replace('/', '-')}.png"


def shown_items(paper: Paper, judged: Iterable[JudgedExperiment]) -> list[JudgedItem]:
    """The items whose figures the page of a paper has, as far as they have runs."""
    items = {item.rows.name: item for each in judged for item in each.items}
    return [items[name] for name in paper.figures if name in items and items[name].rows.made]


def _prose(title: str, text: str, judged: Sequence[JudgedExperiment]) -> list[str]:
    """A part of the page with numbers of its rows; nothing where the paper has no such text."""
    return [f"## {title}", _LINK.sub("](../", with_numbers(text.strip(), judged))] if text else []


def _figures(paper: Paper, judged: Sequence[JudgedExperiment]) -> Iterator[str]:
    items = shown_items(paper, judged)
    if not items:
        return
    yield "## Figures"
    yield (
        "Lines and bars are means over seeds. Bands and thin lines are 95 % intervals by Student's t; many "
        "lines have no bands. A panel, or a group of bars, is a setting of the study. The dataset has the "
        "figures of all items (`offbeat reproduce --dataset DIR`)."
    )
    for item in items:
        rows = item.rows
        size = "" if rows.size == "laptop" else f", at the size “{rows.size}”"
        yield f"![{rows.item.title}]({IMAGES}/{figure_name(rows)})"
        yield f"{rows.item.title}{_shown(rows)}{size}."


def _shown(rows: ItemRows) -> str:
    """What a figure has beside its title."""
    if rows.item.figure != "curves":
        return f": {what_is_shown(rows).partition(';')[0].partition(', relative')[0]}"
    return "; the dashed line is the target" if rows.item.shows in COSTS else ""


def with_numbers(text: str, judged: Iterable[JudgedExperiment]) -> str:
    """A text with effects of claims in place of references to them (`Paper.gain`); "–": there is none."""
    items = {item.rows.name: item for each in judged for item in (*each.items, *each.causes)}

    def effect(found: re.Match[str]) -> str:
        sign, name, number, what = found.groups()
        claims = items[name].claims[int(number) - 1 :] if name in items else ()
        return effect_in_prose(items[name].rows, claims[0], what, sign) if claims else NO_EFFECT

    def answer(found: re.Match[str]) -> str:
        name, number, what = found.groups()
        claims = items[name].claims[int(number) - 1 :] if name in items else ()
        if not claims:
            return NO_EFFECT
        return claims[0].verdict.value if what == "verdict" else reached_text(claims[0], what)

    return _wrapped(_ANSWER.sub(answer, _EFFECT.sub(effect, text)))


def _wrapped(text: str) -> str:
    """Markdown of paragraphs and of lists of one level, each paragraph and entry wrapped by itself."""
    return "\n\n".join(
        "\n".join(
            fill(
                " ".join(block.split()),
                _WIDTH,
                subsequent_indent="  " * block.startswith("- "),
                break_long_words=False,
                break_on_hyphens=False,
            )
            for block in re.split(r"\n(?=- )", part)
        )
        for part in text.split("\n\n")
    )


def claim_row(place: str, item: JudgedItem, claim: JudgedClaim, details: str = "") -> list[str]:
    """A claim with its effect in the paper and here, and its verdict.

    Args:
        place: The experiment or the item that the claim belongs to.
        item: The item.
        claim: The claim.
        details: What is folded away behind the claim's words.
    """
    rows = item.rows
    asked = "" if claim.question == "average" else f" ({ASKED[claim.question]})"
    judged = claim.verdict not in (Verdict.NOT_RUN, Verdict.NO_REAL_DATA)
    mark = f" {MARK}" if judged and uncommitted(row.commit for row in claim.runs) else ""
    quote = f" “{claim.claim.quote}”" if claim.claim.quote else ""
    says = f"{rows.item.title}: **{_without_ours(claim_name(rows, claim))}**.{quote}"
    return [
        place,
        f"{_without_ours(says)} {details}".rstrip(),
        paper_effect(rows, claim),
        mean_effect(rows, claim),
        f"{claim.verdict.value}{asked}{mark}",
    ]


def _without_ours(text: str) -> str:
    return text.removeprefix(OURS)
