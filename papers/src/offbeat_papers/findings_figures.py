"""The figures of the page of findings: effects, decided claims, and what the runs could have shown."""

from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from offbeat.report.figures import blank_figure, save, style_axes
from offbeat.report.palette import MUTED
from offbeat.report.seed_statistics import CONFIDENCE
from offbeat.verdicts.average import Average
from offbeat.verdicts.verdict import Verdict
from offbeat_papers.experiments import load_experiments
from offbeat_papers.findings_numbers import Effects, Findings
from offbeat_papers.judge import JudgedClaim
from offbeat_papers.texts import claim_name

FIGURES = (
    "findings_effects.png", "findings_all.png", "findings_claims.png", "findings_accuracies.png",
    "findings_power.png",
)  # fmt: skip
"""Files of the figures: effects, all claims, decided ones of costs and of accuracies, and the power."""
_DECIDED = (Verdict.HELD, Verdict.NOT_HELD, Verdict.NO_DIFFERENCE)
_COLOURS = {
    Verdict.HELD: "#1a7f37", Verdict.NOT_HELD: "#cf222e", Verdict.NO_DIFFERENCE: "#0969da",
}  # fmt: skip
_OF_PAPERS = ("#0969da", "#bc4c00", "#8250df", "#1a7f37")
_MARKERS = ("o", "s", "^", "D")
_LARGEST = log(30)
_LABEL_WIDTH = 48
_LINE = 0.17
"""Height of a line of a claim's name in inches."""
_TICKS = (0.1, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 40)
_WIDE_TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40)
_POINTS = 100


def draw_findings(found: Findings, folder: Path) -> list[Path]:
    """Draw the figures of the page into a folder; returns the files."""
    drawn = (
        _effects(found),
        _all(found),
        _forest(found.costs, "times as long the other takes", _limited, ratios=True),
        _forest(found.accuracies, "points ahead of the other", lambda value: _POINTS * value, ratios=False),
        _power(found),
    )
    return [save(figure, folder / name) for figure, name in zip(drawn, FIGURES, strict=True)]


def _limited(value: float) -> float:
    return exp(max(-_LARGEST, min(_LARGEST, value)))


def _ratios(*axes: Axis) -> None:
    """Write the ticks of logarithmic axes as ratios."""
    for axis in axes:
        low, high = axis.get_view_interval()
        ticks = _TICKS if high < 15 * low else _WIDE_TICKS
        axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        axis.set_minor_locator(NullLocator())


def _effects(found: Findings) -> Figure:
    """Two panels, of times and of accuracies: a point for each pair, with a colour for each paper."""
    figure = blank_figure(9.2, 4.6)
    papers = {name: paper.name for name, paper in load_experiments().papers.items()}
    panels: tuple[tuple[Effects, Callable[[NDArray[np.float64]], NDArray[np.float64]], float, str], ...] = (
        (found.pairs(found.costs), np.exp, 1.0, "times as long the other takes"),
        (found.pairs(found.accuracies), lambda values: _POINTS * values, 0.0, "points ahead of the other"),
    )
    handles = {}
    for ax, (pairs, amount, equal, unit) in zip(figure.subplots(1, 2), panels, strict=True):
        style_axes(ax)
        every = amount(np.array([effects for own in pairs.values() for effects in own]).reshape(-1, 2))
        ends = [every.min(initial=equal), every.max(initial=equal)]
        ax.plot(ends, ends, color=MUTED, linewidth=1)
        ax.axhline(equal, color=MUTED, linewidth=0.8, linestyle="--")
        ax.axvline(equal, color=MUTED, linewidth=0.8, linestyle="--")
        for (name, title), colour, marker in zip(papers.items(), _OF_PAPERS, _MARKERS, strict=True):
            if own := pairs.get(name):
                x, y = amount(np.array(own)).T
                handles[title] = ax.scatter(x, y, s=15, alpha=0.5, color=colour, marker=marker, linewidths=0)
        ax.set(xlabel=f"in the paper: {unit}", ylabel=f"here: {unit}")
        if equal:
            ax.set(xscale="log", yscale="log")
            _ratios(ax.xaxis, ax.yaxis)
    names = [fill(title, 26) for title in handles]
    figure.legend(
        list(handles.values()), names, frameon=False, fontsize=8, loc="outside lower center", ncols=4
    )
    return figure


def _all(found: Findings) -> Figure:
    """Two panels, of costs and of other numbers: all claims by their mean effect, each with its interval."""
    figure = blank_figure(9.2, 4.6)
    panels: tuple[tuple[list[tuple[JudgedClaim, Average]], Callable[[float], float], float, str], ...] = (
        (_measured(found.costs), _limited, 1.0, "times as long the other takes"),
        (_measured(found.accuracies), lambda value: _POINTS * value, 0.0, "points ahead of the other"),
    )
    handles = {}
    for ax, (claims, amount, equal, unit) in zip(figure.subplots(1, 2), panels, strict=True):
        style_axes(ax, grid="x")
        for rank, (claim, effect) in enumerate(sorted(claims, key=lambda each: each[1].mean), 1):
            low, high = map(amount, effect.interval(CONFIDENCE))
            decided = claim.verdict in _DECIDED
            colour = _COLOURS[claim.verdict] if decided else MUTED
            width = 1.6 if decided else 0.8
            ax.plot([low, high], [rank, rank], color=colour, linewidth=width)
            (handles[str(claim.verdict)],) = ax.plot(
                [amount(effect.mean)], [rank], "o", color=colour, markersize=2 * width
            )
        ax.axvline(equal, color=MUTED, linewidth=0.8, linestyle="--")
        ax.set(xlabel=unit, ylabel="claims, by their effect", yticks=[])
        if equal:
            ax.set(xscale="log")
            _ratios(ax.xaxis)
    figure.legend(
        list(handles.values()), list(handles), frameon=False, fontsize=8, loc="outside lower center", ncols=4
    )
    return figure


def _measured(claims: Sequence[JudgedClaim]) -> list[tuple[JudgedClaim, Average]]:
    """Those of some claims that have an effect, with it."""
    return [
        (claim, claim.last.effect)
        for claim in claims
        if claim.last is not None and claim.last.effect is not None
    ]


def _forest(
    claims: Sequence[JudgedClaim], unit: str, amount: Callable[[float], float], *, ratios: bool
) -> Figure:
    """The decided ones of some claims: the mean effect of each with its interval."""
    decided = [each for each in _measured(claims) if each[0].verdict in _DECIDED]
    decided.sort(key=lambda each: -each[1].mean)
    # A claim's words stand above its interval: the figure is then narrow enough to be read on a phone.
    names = [_named(claim) for claim, _ in decided]
    heights = [name.count("\n") + 2 for name in names]
    figure = blank_figure(4.1, 0.6 + _LINE * sum(heights))
    ax = figure.subplots()
    style_axes(ax, grid="x")
    beside = ax.get_yaxis_transform()  # x from 0 to 1 over the axes, y in lines
    for name, y, (claim, effect) in zip(names, np.cumsum(heights) - 0.5, decided, strict=True):
        low, high = map(amount, effect.interval(CONFIDENCE))
        ax.plot([low, high], [y, y], color=_COLOURS[claim.verdict], linewidth=1.5)
        ax.plot([amount(effect.mean)], [y], "o", color=_COLOURS[claim.verdict], markersize=5)
        ax.text(
            0.02, y - 0.4, name, transform=beside, fontsize=9, va="bottom", linespacing=1.1,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    ax.axvline(amount(0.0), color=MUTED, linewidth=0.8, linestyle="--")
    ax.set_yticks([])
    ax.set_ylim(sum(heights) + 0.5, 0)
    ax.set(xlabel=unit)
    if ratios:
        ax.set(xscale="log")
        _ratios(ax.xaxis)
    return figure


def _named(claim: JudgedClaim) -> str:
    rows = claim.measured.rows
    return fill(f"{rows.full_name}: {claim_name(rows, claim)}", _LABEL_WIDTH, break_on_hyphens=False)


def _power(found: Findings) -> Figure:
    """The share of claims on a cost by the effect that the runs would have shown."""
    sizes = np.exp(found.detectable())
    figure = blank_figure(5.2, 3.4)
    ax = figure.subplots()
    style_axes(ax)
    shares = 100 * np.arange(1, len(sizes) + 1) / max(1, len(found.looked_at))
    ax.step(sizes, shares, where="post", color="#0969da")
    ax.set(xscale="log", xlim=(1, exp(_LARGEST)), ylim=(0, 100))
    ax.set(xlabel="true effect: times as long the other takes", ylabel="% of claims that would show it")
    _ratios(ax.xaxis)
    return figure
