"""Small helpers for static figures: a figure with axes, plain texts, saving."""

import re
import textwrap
from io import BytesIO
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, FigureBase

from offbeat.report.palette import AXIS, GRID, INK, Dash

DPI = 150
SCREEN_DPI = 80
LINE_STYLES: dict[Dash, str] = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


class ShownFigure(Figure):
    """A figure that a notebook shows, also where nothing has imported pyplot."""

    def _repr_png_(self) -> bytes:
        picture = BytesIO()
        self.savefig(picture, dpi=SCREEN_DPI, format="png")
        return picture.getvalue()


def blank_figure(width: float, height: float) -> ShownFigure:
    """Make a figure of that size in inches, without axes."""
    figure = ShownFigure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def new_figure(width: float, height: float, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Make a figure of that size in inches with `rows` axes on a common x axis, first on top."""
    figure = blank_figure(width, height)
    return figure, add_axes(figure, rows)


def add_axes(figure: FigureBase, rows: int = 1) -> list[Axes]:
    """Add `rows` axes on a common x axis, first on top."""
    axes = list(figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])
    for ax in axes:
        style_axes(ax)
    return axes


def style_axes(ax: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """Style axes like those of all figures: a light grid behind the data, and lines on two sides."""
    ax.grid(visible=True, axis=grid, color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(AXIS)
    ax.tick_params(color=AXIS, labelcolor=INK, labelsize=9)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as PNG, SVG or PDF, as the path ends, and return the path."""
    form = path.suffix.removeprefix(".")
    # Without a date, the same figure gives the same file.
    date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
    figure.savefig(path, dpi=DPI, format=form, metadata=date)
    return path


def plain(text: str) -> str:
    """Escape a text from the data, so that matplotlib neither typesets nor hides it."""
    escaped = " ".join(text.split()).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def wrapped(text: str, width: int = 44) -> str:
    """A text from the data as `plain` has it, in lines of at most `width` characters."""
    return "\n".join(map(plain, textwrap.wrap(text, width) or [text]))


def file_name(label: str, taken: set[str]) -> str:
    """Make a label safe as part of a file's name, unlike those `taken`, and add it to them."""
    base = re.sub(r"[^A-Za-z0-9.+-]+", "_", label).strip("._")[:80] or "run"
    name, k = base, 2
    while name.lower() in taken:
        name, k = f"{base}_{k}", k + 1
    taken.add(name.lower())
    return name
