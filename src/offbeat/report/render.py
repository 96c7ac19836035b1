"""The comparison table as text, Markdown and CSV."""

import csv
import html
import io
from dataclasses import dataclass

import rich.table
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column
from rich.text import Text

from offbeat.report.table import Stat, Table, TableRow
from offbeat.report.units import Unit, time_unit


@dataclass(frozen=True, slots=True)
class Cells:
    """A table as words: the column heads, and one tuple of equal length per row."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def to_cells(table: Table) -> Cells:
    """Write every number of a table as a reader wants it; "-" where there is none.

    Args:
        table: A table of one row or more.
    """
    unit = time_unit(max((row.time.mean for row in table.rows if row.time), default=0.0))
    rows = [_cells(row, table, unit) for row in table.rows]
    return Cells(tuple(rows[0]), tuple(tuple(row.values()) for row in rows))


def relative_text(relative: float | None) -> str:
    """Write a relative time as FedCompass's Table 1 does: "1.00x", or "-"."""
    return "-" if relative is None else f"{relative:.2f}x"


def to_rich(table: Table) -> rich.table.Table:
    """Return the table for a rich console, its notes as the caption."""
    cells = to_cells(table)
    columns = [
        Column(head, justify="right" if k else "left", min_width=_widest_word(cells, k))
        for k, head in enumerate(cells.heads)
    ]
    out = rich.table.Table(*columns, caption_justify="left", header_style="bold", box=SIMPLE_HEAD)
    out.padding = (0, 1, 0, 0)
    if table.notes:
        out.caption = Text("\n".join(table.notes), justify="left")
    for row in cells.rows:
        out.add_row(*map(Text, row))
    return out


def _widest_word(cells: Cells, column: int) -> int:
    """Narrowest width at which no word of the head and no cell but a `mean ± std` is broken."""
    words = [*cells.heads[column].split(), *(part for row in cells.rows for part in row[column].split(" ± "))]
    return max(map(len, words))


def to_text(table: Table, width: int = 160) -> str:
    """Return the table and its notes as plain text, at most `width` characters wide."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, force_terminal=False).print(to_rich(table))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def to_markdown(table: Table) -> str:
    """Return the table as a Markdown table, followed by its notes as a list."""
    cells = to_cells(table)
    lines = [
        _markdown_line(cells.heads),
        "|" + "|".join([" :-- "] + [" --: "] * (len(cells.heads) - 1)) + "|",
        *map(_markdown_line, cells.rows),
        "",
        *(f"- {_markdown_text(note)}" for note in table.notes),
    ]
    return "\n".join(lines).rstrip() + "\n"


def to_csv(table: Table) -> str:
    """Return the numbers unrounded: times in virtual seconds, accuracies and idleness as shares."""
    stats = ("best", "final", "time", "versions", "tasks", "staleness", "idle")
    heads = [f"{name}_{part}" for name in stats for part in ("mean", "std", "n")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["label", "seeds", "metric", "target", "reached", "baseline", "relative", *heads])
    for row in table.rows:
        values: list[float | None] = []
        for name in stats:
            stat: Stat | None = getattr(row, name)
            values += [None, None, 0] if stat is None else [stat.mean, stat.std, stat.n]
        known = row.label, row.seeds, table.measure.name, table.target, row.reached, table.baseline
        writer.writerow([*known, row.relative, *values])
    return out.getvalue()


def _cells(row: TableRow, table: Table, unit: Unit) -> dict[str, str]:
    """The cells of a row by the heads of their columns."""
    target, measure = table.target, table.measure
    places = 2 if measure.is_share else 4
    time = "time to target" if target is None else f"time to {measure.value_text(target)} ({unit.name})"
    return {
        "label": row.label,
        "seeds": str(row.seeds),
        f"best {measure.title}": _stat_text(row.best, measure.scale, places),
        "final (%)" if measure.is_share else "final": _stat_text(row.final, measure.scale, places),
        time: _stat_text(row.time, 1 / unit.size),
        "relative time": relative_text(row.relative),
        "reached": "-" if target is None else f"{row.reached}/{row.seeds}",
        "versions": _count_text(row.versions),
        "client tasks": _count_text(row.tasks),
        "mean staleness": _stat_text(row.staleness, 1.0),
        "idle (%)": "-" if row.idle is None else f"{100 * row.idle.mean:.1f}",
    }


def _stat_text(stat: Stat | None, scale: float, places: int = 2) -> str:
    if stat is None:
        return "-"
    mean, std = stat.mean * scale, stat.std * scale
    return f"{mean:.{places}f}" if stat.n == 1 else f"{mean:.{places}f} ± {std:.{places}f}"


def _count_text(stat: Stat | None) -> str:
    if stat is None:
        return "-"
    return f"{stat.mean:.0f}" if stat.mean >= 100 or stat.mean.is_integer() else f"{stat.mean:.1f}"


def _markdown_line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(map(_markdown_text, cells)) + " |"


def _markdown_text(text: str) -> str:
    plain = " ".join(text.split())
    return html.escape(plain.replace("\\", "\\\\").replace("|", "\\|"), quote=False)
