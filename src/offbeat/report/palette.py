"""Colours that stay apart for colour-blind readers; a label has the same one in every figure.

Labels use the palette of Okabe and Ito (yellow darkened to be legible on white); arrival groups use
the light palette of Paul Tol, on which dark text can be read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Dash = Literal["solid", "dash", "dot", "dashdot"]

LABEL_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B5B5B", "#A39400")
GROUP_COLOURS = ("#77AADD", "#EE8866", "#EEDD88", "#44BB99", "#FFAABB", "#99DDFF", "#BBCC33", "#C5A5CF")
GROUPS_TOLD_APART = len(GROUP_COLOURS)
DASHES: tuple[Dash, ...] = ("solid", "dash", "dot", "dashdot")

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
    """How a label is drawn: a colour, and a dash once the colours have run out."""

    colour: str
    dash: Dash


Styles = Mapping[str, Style]


def choose_styles(labels: Iterable[str]) -> Styles:
    """Give each label its style, in order."""
    n = len(LABEL_COLOURS)
    return {
        label: Style(LABEL_COLOURS[i % n], DASHES[i // n % len(DASHES)])
        for i, label in enumerate(dict.fromkeys(labels))
    }


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
