"""Colours that stay apart for colour-blind readers; an algorithm has the same one in every figure.

The first eight colours of labels, six of which are of the palette of Okabe and Ito, stay apart in every kind
of colour blindness. The algorithms that are compared most have them. Not all other colours stay apart, so
their lines are dashed, dotted, or both. Arrival groups use the light palette of Paul Tol, on which dark text
can be read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Literal

Dash = Literal["solid", "dash", "dot", "dashdot"]

GROUP_COLOURS = ("#77AADD", "#EE8866", "#EEDD88", "#44BB99", "#FFAABB", "#99DDFF", "#BBCC33", "#C5A5CF")
GROUPS_TOLD_APART = len(GROUP_COLOURS)

INK = "#1c2733"
MUTED = "#66717e"
GRID = "#e6eaef"
AXIS = "#b7c0ca"
NO_GROUP = "#B4BECA"
WAITING = "#f1f3f6"
WAITING_LINES = "#c3cad3"
LOST = "#B00020"
RECALLED = "#6A1B9A"


@dataclass(frozen=True, slots=True)
class Style:
    """How a label is drawn: a colour, and a dash."""

    colour: str
    dash: Dash


Styles = Mapping[str, Style]

_COLOURS: Mapping[Dash, tuple[str, ...]] = {
    "solid": ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#7A4B1E"),
    "dash": ("#5B5B5B", "#C51B7D", "#2F7296", "#D4A373", "#9E9AC8", "#4D9221", "#E07B91", "#00563E"),
    "dot": ("#3B4CC0", "#8A3D00", "#AA4499", "#101010", "#5E3C99", "#FF6F61", "#A39400", "#2B2B5E"),
    "dashdot": (
        "#1F6F8B", "#B5654A", "#6B8E23", "#8C4F9F", "#C2880A", "#4A7EBB", "#7F7F3A", "#9C1C4E", "#3F7F6F"
    ),
}  # fmt: skip
LABEL_STYLES = tuple(Style(colour, dash) for dash, colours in _COLOURS.items() for colour in colours)
_ALGORITHMS = (
    "fedavg", "fedcompass", "fedbuff", "fedasync", "fedasmu", "fedfa", "fedssmu", "port",
    "fedavgm", "fedprox", "fedat", "scaffold", "fednova", "moon", "feddyn", "fedlws",
    "fedadam", "fedyogi", "fedadagrad", "asofed", "wireless", "first_of", "fadas", "ringmaster",
    "ca2fl", "ace", "mifa", "fedvarp", "fedstale", "ringleader", "rennala", "malenia", "delay_adaptive",
)  # fmt: skip
ALGORITHM_STYLES: Styles = dict(zip(_ALGORITHMS, LABEL_STYLES, strict=True))
"""The style of each algorithm in every figure; those that are compared most come first."""


def choose_styles(labels: Iterable[str]) -> Styles:
    """Give each label its style: an algorithm its own, and other labels what is left, in order."""
    unique = list(dict.fromkeys(labels))
    fixed: dict[str, Style] = {}
    for label in unique:
        # "FedBuff" is as good a name of it as "fedbuff"; of both in one figure, the first is drawn so.
        style = ALGORITHM_STYLES.get(label.lower())
        if style is not None and style not in fixed.values():
            fixed[label] = style
    left = cycle([style for style in LABEL_STYLES if style not in fixed.values()])
    return {label: fixed[label] if label in fixed else next(left) for label in unique}


def group_colour(group: int | None) -> str:
    """Return the colour of an arrival group; grey for work outside any group."""
    return NO_GROUP if group is None else GROUP_COLOURS[(group - 1) % len(GROUP_COLOURS)]


def rgb(colour: str) -> tuple[int, int, int]:
    """Split "#rrggbb" into 0..255 components."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def translucent(colour: str, alpha: float) -> str:
    """Write "#rrggbb" as a CSS rgba() colour of that opacity."""
    return "rgba({},{},{},{})".format(*rgb(colour), alpha)


def tint(colour: str) -> str:
    """Mix "#rrggbb" with white, light enough for dark text and marks to stand out on it."""
    return "#" + "".join(f"{round(0.5 * part + 127.5):02x}" for part in rgb(colour))


def text_on(colour: str) -> str:
    """Return a text colour that can be read on `colour`."""
    red, green, blue = rgb(colour)
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"
