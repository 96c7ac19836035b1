"""An item's table and its claims as texts, for Markdown and for terminals."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, inf, isfinite, log
from statistics import median

from offbeat.core.metric_names import NamedMetric
from offbeat.report.seed_statistics import CONFIDENCE
from offbeat.units import number_text
from offbeat.verdicts.answers import Quantifier
from offbeat.verdicts.average import Average
from offbeat.verdicts.cost import Cost, log_ratio
from offbeat.verdicts.verdict import Verdict
from offbeat_papers.arm_rows import Arm, ItemRows
from offbeat_papers.claim_pairs import number_value
from offbeat_papers.interval import Interval, interval
from offbeat_papers.judge import JudgedClaim, JudgedItem
from offbeat_papers.provenance import MARK, uncommitted
from offbeat_papers.study import COSTS, VALUES, Number

Grid = list[list[str]]
"""Rows of cells, the heads first."""

NO_EFFECT = "–"
_UNITS = {"time": " s", "bytes": " B"}
_CROWDED = 6
_WHOLE = 9.95
_ROUNDING = 1e-9


def item_grid(rows: ItemRows) -> Grid:
    """The table of an item: ours with its 95 % interval over seeds, and the paper's number after a stroke.

    Labels are rows and columns columns, or the other way round where there are many columns.
    """
    item = rows.item
    columns, labels = rows.study.item_columns(rows.name), rows.study.item_labels(rows.name)
    columns = [column for column in columns if any(arm[1] == column for arm in rows.arms())]
    labels = [label for label in labels if any(arm[0] == label for arm in rows.arms())]
    if len(columns) > max(len(labels), _CROWDED):
        return [
            ["", *labels],
            *([column, *(_cell(rows, (label, column)) for label in labels)] for column in columns),
        ]
    heads = [
        f"{column} ({rows.measure.value_text(rows.targets[column])})"
        if item.shows in COSTS and column in rows.targets and len(set(rows.targets.values())) > 1
        else column
        for column in columns
    ]
    return [["", *heads], *([label, *(_cell(rows, (label, c)) for c in columns)] for label in labels)]


def what_is_shown(rows: ItemRows) -> str:
    """The contents of an item's table, in one line."""
    item, words = rows.item, rows.measure.words
    if item.shows in COSTS:
        targets = sorted(set(rows.targets.values()))
        goal = rows.measure.value_text(targets[0]) if len(targets) == 1 else "its target"
        amount = {"time": "virtual time", "bytes": "bytes up and down"}.get(item.shows, item.shows)
        relative = f", relative to {item.relative}" if item.relative else ""
        shown = f"{amount} to {goal} {words}{relative}"
    else:
        names = {"worst": "the worst client's final", "level": "mean over the last fifth of"}
        shown = f"{names.get(item.shows, item.shows)} {rows.measure.title}"
    return f"{shown}; here [95 % by Student's t over seeds] / in the paper"


def _cell(rows: ItemRows, arm: Arm) -> str:
    label, column = arm
    if arm not in rows.runs:
        return ""
    numbers = rows.item.numbers.get(column, {})
    paper = f" / {_paper_text(rows, numbers[label])}" if label in numbers else ""
    return f"{_ours(rows, arm)}{paper}"


def _ours(rows: ItemRows, arm: Arm) -> str:
    item = rows.item
    amounts = rows.amounts(arm, item.shows)
    if not amounts:
        return "not run"
    censored = sum(isinstance(amount, Cost) and not amount.reached for amount in amounts.values())
    reached = f" ({len(amounts) - censored} of {len(amounts)} seeds)" if censored else ""
    if item.shows in COSTS and item.relative:
        if 2 * censored >= len(amounts):
            return f"-{reached}"
        base = rows.amounts((item.relative, arm[1]), item.shows)
        if arm[0] == item.relative:
            return f"1.00x{reached}"
        pairs = [(base[seed], amounts[seed]) for seed in amounts if seed in base]
        ratios = [log_ratio(a, b) for a, b in pairs if isinstance(a, Cost) and isinstance(b, Cost)]
        estimate = interval([ratio for ratio in ratios if ratio is not None])
        late = any(isinstance(cost, Cost) and not cost.reached for cost in base.values())
        bound = ("~ " if censored else "< ") if late else "> " if censored else ""
        return "-" if estimate is None else f"{bound}{_ratios(estimate)}{reached}"
    return amount_text(rows, arm, item.shows)


def amount_text(rows: ItemRows, arm: Arm, by: str) -> str:
    """The mean of an arm's runs with its 95 % interval; ">" where some did not reach the target.

    Args:
        rows: The rows of an item.
        arm: The label and the column.
        by: What is shown: a cost, or a value.
    """
    amounts = rows.amounts(arm, by)
    censored = sum(isinstance(amount, Cost) and not amount.reached for amount in amounts.values())
    values = [amount.amount if isinstance(amount, Cost) else amount for amount in amounts.values()]
    estimate = _possible(rows, by, interval([_scale(rows, by) * value for value in values]))
    if estimate is None:
        return NO_EFFECT
    reached = f" ({len(amounts) - censored} of {len(amounts)} seeds)" if censored else ""
    return f"{'> ' if censored else ''}{_numbers(estimate)}{_UNITS.get(by, '')}{reached}"


def _possible(rows: ItemRows, by: str, found: Interval | None) -> Interval | None:
    """An interval within what a cost or a share can be: few runs that differ much have a wider one."""
    if found is None or not (by in COSTS or _scale(rows, by) != 1.0):
        return found
    most = inf if by in COSTS else _scale(rows, by)
    return replace(found, low=max(0.0, found.low), high=min(most, found.high))


def _paper_text(rows: ItemRows, number: Number) -> str:
    value = number_value(number)
    if value is None:
        return "-"
    scale = _scale(rows, rows.item.shows)
    if rows.item.relative and rows.item.shows in COSTS:
        return f"{value:.2f}x"
    spread = f" ± {scale * number[1]:.4g}" if isinstance(number, tuple) else ""
    return f"{scale * value:.4g}{spread}{_UNITS.get(rows.item.shows, '')}"


def _scale(rows: ItemRows, by: str) -> float:
    """100 for shares."""
    if by in COSTS:
        return 1.0
    return rows.measure.scale if by in VALUES else NamedMetric.of(by, {}).scale


def _numbers(found: Interval, *, sign: bool = False) -> str:
    half = (found.high - found.low) / 2 or None
    texts = [number_text(value, half, sign=sign) for value in (found.mean, found.low, found.high)]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]" if half else texts[0]


def _ratios(found: Interval) -> str:
    mean, low, high = (f"{exp(value):.2f}x" for value in (found.mean, found.low, found.high))
    return f"{mean} [{low}, {high}]" if found.n > 1 else mean


CLAIM_HEADS = [
    "the paper says",
    "in the paper",
    "here [95 % by t]",
    "on average",
    "every pair",
    "pairs ahead",
    "verdict",
]
"""Heads of `claim_cells`."""
ASKED: dict[Quantifier, str] = {
    "average": "on average", "every": "every pair", "most": "most pairs", "some": "some pair",
}  # fmt: skip
"""The questions as they are read."""


def claim_cells(rows: ItemRows, judged: JudgedClaim) -> list[str]:
    """A claim, its effect in the paper and here, the answers to the questions, and its verdict."""
    several = len(judged.pairs) > 1
    return [
        claim_text(rows, judged),
        paper_effect(rows, judged),
        _here(rows, judged),
        judged.answers["average"].value if several else "",
        judged.answers["every"].value if several else "",
        pair_counts(judged),
        verdict_text(rows, judged),
    ]


def paper_effect(rows: ItemRows, judged: JudgedClaim) -> str:
    """A claim's effect by the paper's own numbers, and in how many pairs they are as it claims."""
    papers = [pair.paper for pair in judged.pairs if pair.paper is not None]
    return f"{_effects(rows, judged.by, papers)}{_unlike_the_claim(judged, papers)}"


def mean_effect(rows: ItemRows, judged: JudgedClaim) -> str:
    """The mean effect here with its 95 % interval."""
    found = None if judged.last is None else judged.last.effect
    if found is None or not judged.effects:
        return NO_EFFECT
    low, high = found.interval(CONFIDENCE)
    return _effect_with_interval(rows, judged.by, Interval(found.mean, low, high, len(judged.seeds)))


def pair_effects(rows: ItemRows, judged: JudgedClaim) -> str:
    """The effects here of several pairs: the median, the least and the largest."""
    return _effects(rows, judged.by, judged.effects)


def _here(rows: ItemRows, judged: JudgedClaim) -> str:
    """The mean effect with its interval, and the pairs' effects where there are several."""
    mean = mean_effect(rows, judged)
    several = len(judged.pairs) > 1 and mean != NO_EFFECT
    return f"mean {mean}; {pair_effects(rows, judged)}" if several else mean


def verdict_text(rows: ItemRows, judged: JudgedClaim) -> str:
    """The verdict on a claim and its question; for an undecided one the effect that would have shown."""
    asked = "" if judged.question == "average" else f" ({ASKED[judged.question]})"
    shown = detectable_text(rows, judged)
    mixed = "; runs of different processors" if judged.verdict == Verdict.NOT_RUN and judged.mixed else ""
    return f"{judged.verdict.value}{asked}{mixed}{f'; would have shown {shown}' if shown else ''}"


def detectable_text(rows: ItemRows, judged: JudgedClaim) -> str:
    """The effect that the runs of an undecided claim would have shown; empty of others."""
    size = None if judged.last is None else judged.last.detectable(judged.question)
    if judged.verdict != Verdict.UNDECIDED or size is None:
        return ""
    most = log(10) if judged.by in COSTS else 0.5
    large = judged.by in COSTS or _scale(rows, judged.by) != 1.0
    only = "only more than " * (large and size > most)
    shown = min(size, most) if large else size
    if judged.by in COSTS:
        return f"{only}{_factor(shown)}"
    amount = _scale(rows, judged.by) * shown
    return f"{only}{number_text(amount, abs(amount) / 5 or None, sign=True)}{_points(rows, judged.by)}"


def effect_in_prose(rows: ItemRows, judged: JudgedClaim, what: str, sign: str) -> str:
    """An effect of a claim for a sentence, of two digits, without a sign: "1.6x", "2.4 points (undecided)".

    A mean that the runs have not decided says so, and one that only an earlier look has decided. † marks one
    of runs whose commits nobody can check out.

    Args:
        rows: The rows of its item.
        judged: The claim.
        what: The "mean" over its pairs, their "median", the "least" of a pair or the "largest".
        sign: "+" where the sentence says that the claimed one is ahead, "-" that it is behind.

    Returns:
        The effect; "–" before the first look, or of the other sign.
    """
    effects, last = judged.effects, judged.last
    if not effects or last is None or last.effect is None:
        return NO_EFFECT
    of_pairs = {"median": median(effects), "least": min(effects), "largest": max(effects)}
    value = of_pairs.get(what, last.effect.mean)
    if not isfinite(value) or (value >= 0) != (sign == "+"):
        return NO_EFFECT
    size = exp(value) if judged.by in COSTS else abs(_scale(rows, judged.by) * value)
    unit = "x" if judged.by in COSTS else _points(rows, judged.by)
    text = f"{size:.0f}" if size >= _WHOLE else f"{size:#.2g}"
    mark = MARK * (uncommitted(row.commit for row in judged.runs) > 0)
    return text.rstrip(".") + unit + mark + (_doubt(judged, last.effect) if what == "mean" else "")


def _doubt(judged: JudgedClaim, effect: Average) -> str:
    """What stands behind a mean that the runs have not decided, or that only an earlier look has."""
    answer = judged.answers["average"]
    if answer not in (Verdict.HELD, Verdict.NOT_HELD):
        return f" ({answer.value})"
    low, high = effect.interval(CONFIDENCE)
    earlier = low < 0 < high and not judged.claim.margin
    return f" ({answer.value} at {judged.decided_at('average')} seeds)" if earlier else ""


def margin_text(rows: ItemRows, judged: JudgedClaim) -> str:
    """A claim's margin in words: "by more than 50 %", "at most 0.5 points behind"; empty without one."""
    margin = judged.claim.margin
    if not margin:
        return ""
    share = judged.by in COSTS
    size = abs(margin) * (100 if share else _scale(rows, judged.by))
    unit = " %" if share else _points(rows, judged.by)
    return f"by more than {size:g}{unit}" if margin > 0 else f"at most {size:g}{unit} behind"


def seeds_text(judged: JudgedClaim) -> str:
    """Seeds of a claim's last look, and of the look with the least p-value where it was an earlier one."""
    seeds, least = len(judged.seeds), judged.least_p_at
    return f"{seeds}" + (f"; p least at {least}" if least not in (None, seeds) else "")


def reached_text(judged: JudgedClaim, which: str = "reached") -> str:
    """How many runs of each label of a claim on a cost reached the target: "fedavg 3 of 12"; else empty.

    Labels are compared in the same seeds: those of the last look, or else the planned ones.

    Args:
        judged: The claim.
        which: The labels: all that it compares ("reached"), the claimed one ("leader") or the "others".
    """
    if judged.by not in COSTS:
        return ""
    rows, counts = judged.measured.rows, dict[str, list[bool]]()
    seeds = judged.seeds or rows.seeds
    for label, column in dict.fromkeys(arm for pair in judged.pairs for arm in judged.compared(pair)):
        amounts = rows.amounts((label, column), judged.by)
        found = [isinstance(cost, Cost) and cost.reached for seed, cost in amounts.items() if seed in seeds]
        counts.setdefault(label, []).extend(found)
    leader = {pair.better[0] for pair in judged.pairs}
    shown = {"reached": {*counts}, "leader": leader, "others": {*counts} - leader}[which]
    return ", ".join(
        f"{name} {sum(reached)} of {len(reached)}"
        for name, reached in counts.items()
        if reached and name in shown
    )


def claim_name(rows: ItemRows, judged: JudgedClaim) -> str:
    """A claim in words; where several of an item say the same, with what tells them apart."""
    alike = [each for each in rows.item.claims if each.says == judged.claim.says]
    if len(alike) == 1:
        return judged.claim.says
    names = [each.better for each in alike]
    if len({*names}) < len(alike) or all(len(each.than) == 1 for each in alike):
        names = [f"{each.better} against {', '.join(each.over or each.than)}" for each in alike]
    return f"{judged.claim.says} ({names[alike.index(judged.claim)]})"


def claim_text(rows: ItemRows, judged: JudgedClaim) -> str:
    """A claim in words, and the paper's words."""
    quote = f": “{judged.claim.quote}”" if judged.claim.quote else ""
    return f"{claim_name(rows, judged)}{quote}"


def _unlike_the_claim(judged: JudgedClaim, papers: Sequence[float]) -> str:
    """The number of pairs in which the paper's own numbers are as it claims, unless that is all."""
    so = sum(advantage >= judged.measured.margin - _ROUNDING for advantage in papers)
    return "" if so == len(papers) else f"; so in {so} of {len(papers)}"


def pair_counts(judged: JudgedClaim) -> str:
    """How many pairs are ahead, "24 of 27 [22, 26]", and how many were not run or cannot be compared."""
    if not judged.pairs:
        return f"none of {judged.measured.named} at this size"
    number = len(judged.pairs)
    fewer = [f"{judged.measured.named} named"] if number < judged.measured.named else []
    if mixed := judged.mixed:
        fewer.append(f"{mixed} left out: runs of different processors")
    beside = f" ({'; '.join(fewer)})" if fewer else ""
    found = None if judged.last is None else judged.last.ahead
    if number == 1 or found is None:
        return f"{number} pair{'s' * (number > 1)}{beside}"
    return f"{found.expected:.0f} of {found.of} [{found.low}, {found.high}]{beside}"


def _effect_with_interval(rows: ItemRows, by: str, found: Interval) -> str:
    if by in COSTS:
        return _ratios(found)
    scale = _scale(rows, by)
    scaled = Interval(scale * found.mean, scale * found.low, scale * found.high, found.n)
    return f"{_numbers(scaled, sign=True)}{_points(rows, by)}"


def _effects(rows: ItemRows, by: str, effects: Sequence[float]) -> str:
    """Advantages of several pairs: the median, the least and the largest; of one the advantage."""
    if not effects:
        return NO_EFFECT
    chosen = [median(effects)] if len(effects) == 1 else [median(effects), min(effects), max(effects)]
    if by in COSTS:
        texts = [_factor(value) for value in chosen]
        unit = ""
    else:
        scale = _scale(rows, by)
        spread = scale * (max(effects) - min(effects)) / 2 or None
        texts = [number_text(scale * value, spread, sign=True) for value in chosen]
        unit = _points(rows, by)
    return f"{texts[0]}{unit}" if len(texts) == 1 else f"median {texts[0]}, {texts[1]} to {texts[2]}{unit}"


def _factor(advantage: float) -> str:
    """How many times as much the other takes; "∞": it never gets there."""
    return "∞" if advantage == inf else "0x" if advantage == -inf else f"{exp(advantage):.2f}x"


def _points(rows: ItemRows, by: str) -> str:
    return " points" if _scale(rows, by) != 1.0 else ""


def claim_grid(judged: JudgedItem) -> Grid:
    """The claims of an item with their verdicts."""
    return [CLAIM_HEADS, *(claim_cells(judged.rows, claim) for claim in judged.claims)]


def markdown(grid: Grid) -> str:
    """A grid as a Markdown table."""
    lines = ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in grid]
    return "\n".join([lines[0], "|" + "---|" * len(grid[0]), *lines[1:]]) + "\n"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def item_markdown(judged: JudgedItem, figure: str | None = None) -> str:
    """An item as Markdown: title, table, figure, claims, and notes.

    Args:
        judged: The item.
        figure: Path of its figure. None means none.
    """
    rows, item = judged.rows, judged.rows.item
    parts = [f"## {item.title}", f"{what_is_shown(rows)}. {rows_text(rows)}.", markdown(item_grid(rows))]
    if figure is not None:
        parts.append(f"![{item.title}]({figure})")
    if judged.claims:
        parts.append(markdown(claim_grid(judged)))
    parts += [f"{claim.claim.says}: {claim.claim.cause}" for claim in judged.claims if claim.claim.cause]
    return "\n\n".join([*parts, *([item.notes] if item.notes else [])]).rstrip() + "\n"


def rows_text(rows: ItemRows) -> str:
    """Size and number of runs: "laptop: 24 of 24 runs, and 8 with further seeds"."""
    further = rows.made - rows.made_as_planned
    text = f"{rows.size}: {rows.made_as_planned} of {rows.planned} runs"
    if further:
        text += f", and {further} with further seeds"
    if rows.unmeasured:
        goals = ", ".join(rows.measure.value_text(target) for target in rows.unmeasured)
        text += (
            f"; they have not measured the target {goals}: give a multiple of 5 % of a share, or delete the "
            "rows to make them again"
        )
    return text
