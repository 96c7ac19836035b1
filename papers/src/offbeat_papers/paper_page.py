"""The page of one paper: its experiments and claims, each with the paper's effect, ours, and the verdict."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from textwrap import fill

from offbeat.verdicts.verdict import Verdict
from offbeat_papers.arm_rows import ItemRows
from offbeat_papers.experiments import JudgedExperiment, Paper, rows_of
from offbeat_papers.judge import JudgedClaim, JudgedItem
from offbeat_papers.provenance import MARK, uncommitted
from offbeat_papers.rows import ResultRow
from offbeat_papers.study import COSTS
from offbeat_papers.texts import (
    ASKED,
    NO_EFFECT,
    claim_name,
    detectable_text,
    effect_in_prose,
    markdown,
    mean_effect,
    pair_counts,
    pair_effects,
    paper_effect,
    reached_text,
    what_is_shown,
)

_EFFECT = re.compile(r"\{([+-])([\w-]+)#([1-9]\d*)\.(mean|median|least|largest)\}")
_ANSWER = re.compile(r"\{([\w-]+)#([1-9]\d*)\.(verdict|reached|leader|others)\}")
_LINK = re.compile(r"\]\((?=[\w-]+\.md)")
_UNSHOWN = (Verdict.NOT_HELD, Verdict.NO_DIFFERENCE, Verdict.UNDECIDED)
_WIDTH = 120
_EXPERIMENT_HEADS = ["experiment", "verdict", "claims", "runs", "beside it"]
_CLAIM_HEADS = ["experiment", "claim", "in the paper", "here", "verdict"]
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
    causes = _told_once(judged)
    parts = [
        f"# {paper.title}",
        "After this page you can say which claims of this paper hold here, and repeat the runs of each "
        f"claim. `offbeat reproduce --page docs/{page}` writes the page.",
        *_prose("What its gain consists of", paper.gain, judged),
        *_prose("What the rows show", paper.rows, judged),
        *_figures(paper, judged),
        "## Experiments",
        "An experiment's verdict follows from the verdicts of its claims below. "
        f"{MARK} marks the number of runs from commits that nobody can check out, and what rests on them.",
        markdown([_EXPERIMENT_HEADS, *map(_experiment_row, judged)]),
        "## Claims",
        "For times, the effect of a claim is a ratio: how many times as long the second method takes. For "
        "other numbers, the effect is a difference: how far the first method is ahead. For a claim on "
        "several pairs of methods, the effect is the mean over the pairs, with its 95 % interval by "
        "Welch's t. The verdict answers the question of the paper's words. That question is about the "
        "mean, unless the brackets name another question. *More* has the answers to other questions, the "
        "pairs, the runs, and the command that makes the runs.",
        markdown([_CLAIM_HEADS, *_claim_rows(judged)]),
    ]
    if causes:
        parts += [
            "## Why it comes out so",
            "These tests are ours and not the paper's. They say why an experiment comes out as it does, and "
            "do not count in its verdict.",
            markdown([_CLAIM_HEADS, *_cause_rows(causes)]),
        ]
    parts += [
        "## Where to go on",
        f"- [All papers](../{page}): the verdicts side by side.\n"
        "- [The rule of the verdicts](../studies.md#when-a-claim-holds).\n"
        "- [Findings in short](../findings.md): what follows from all papers.",
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


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


def runs_cell(judged: JudgedExperiment) -> str:
    """Number of an experiment's runs, and of those whose commit cannot be checked out."""
    rows = rows_of(judged.items)
    return "exact" if judged.experiment.test else f"{len(rows)}{_marked(rows)}"


def verdict_counts(judged: JudgedExperiment) -> str:
    """An experiment's claims by verdict: "3 held, 1 undecided"."""
    counts = Counter(claim.verdict for item in judged.items for claim in item.claims)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])


def _marked(rows: Sequence[ResultRow]) -> str:
    number = uncommitted(row.commit for row in rows)
    return f" ({MARK}{number})" if number else ""


def _name(judged: JudgedExperiment) -> str:
    return judged.experiment.name.partition("/")[2]


def _experiment_row(judged: JudgedExperiment) -> list[str]:
    experiment = judged.experiment
    test = f"`pytest {experiment.test}`" if experiment.test else None
    again = f"the runs of {judged.again.partition('/')[2]} again" if judged.again else None
    commands = " ".join(_command(item) for item in judged.items if not item.claims) or None
    beside = filter(None, [experiment.notes, again, experiment.no_real_data, test, commands])
    title = f'<a id="{_name(judged)}"></a>{_name(judged)}: {experiment.title}'
    return [title, judged.verdict.value, verdict_counts(judged), runs_cell(judged), "; ".join(beside)]


def _claim_rows(own: Sequence[JudgedExperiment]) -> Iterator[list[str]]:
    for each in own:
        for item in each.items:
            for claim in item.claims:
                yield _claim_row(_name(each), item, claim)


def _told_once(own: Sequence[JudgedExperiment]) -> dict[str, tuple[list[str], JudgedItem]]:
    """The causes by name, each with the names of all experiments that it explains."""
    found: dict[str, tuple[list[str], JudgedItem]] = {}
    for each in own:
        for item in each.causes:
            found.setdefault(item.rows.full_name, ([], item))[0].append(_name(each))
    return found


def _cause_rows(causes: dict[str, tuple[list[str], JudgedItem]]) -> Iterator[list[str]]:
    for experiments, item in causes.values():
        for claim in item.claims:
            yield _claim_row(", ".join(experiments), item, claim)


def _claim_row(experiment: str, item: JudgedItem, claim: JudgedClaim) -> list[str]:
    rows = item.rows
    asked = "" if claim.question == "average" else f" ({ASKED[claim.question]})"
    judged = claim.verdict not in (Verdict.NOT_RUN, Verdict.NO_REAL_DATA)
    mark = f" {MARK}" if judged and uncommitted(row.commit for row in claim.runs) else ""
    quote = f" “{claim.claim.quote}”" if claim.claim.quote else ""
    says = f"{rows.item.title}: **{_without_ours(claim_name(rows, claim))}**.{quote}"
    return [
        experiment,
        f"{_without_ours(says)} {_details(item, claim)}",
        paper_effect(rows, claim),
        mean_effect(rows, claim),
        f"{claim.verdict.value}{asked}{mark}",
    ]


def _without_ours(text: str) -> str:
    return text.removeprefix(OURS)


def _details(item: JudgedItem, claim: JudgedClaim) -> str:
    """Further details of a claim, folded away."""
    lines = []
    if len(claim.pairs) > 1:
        lines += [f"{ASKED[each]}: {claim.answers[each]}" for each in ("average", "every")]
        if claim.effects:
            lines.append(f"pairs here: {pair_effects(item.rows, claim)}")
    lines.append(f"pairs ahead: {pair_counts(claim)}")
    if reached := reached_text(claim):
        lines.append(f"runs that reached the target: {reached}")
    if shown := detectable_text(item.rows, claim):
        lines.append(f"would have shown: {shown}")
    lines.append(f"runs: {_runs(item, claim)}{_marked(claim.runs)}")
    lines += _beside(item, claim)
    lines.append(_command(item))
    return f"<details><summary>more</summary>{'<br>'.join(lines)}</details>"


def _runs(item: JudgedItem, claim: JudgedClaim) -> str:
    """Size and seeds of a claim: of those there are, as many as the last look has."""
    most = max((len(pair.seeds) for pair in claim.pairs), default=0)
    if not most:
        return "none"
    used = len(claim.seeds)
    return f"{item.rows.size}, {used} seeds" + (f" (of some pairs {most})" if most > used else "")


def _beside(item: JudgedItem, claim: JudgedClaim) -> list[str]:
    study = item.rows.study
    not_here = study.sizes[item.rows.size].not_here if not item.rows.made else None
    told = study.no_real_data if not (not_here or "").startswith(study.no_real_data or "") else None
    cause = claim.claim.cause if claim.verdict in _UNSHOWN else None
    return [escape(text, quote=False) for text in (cause, item.rows.item.notes, told, not_here) if text]


def _command(item: JudgedItem) -> str:
    size = "" if item.rows.size == "laptop" else f" --scale {item.rows.size}"
    return f"`offbeat reproduce {item.rows.full_name}{size}`"
