"""The comparison table as words: its cells, and how a terminal shows it."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import rich.table
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Column
from rich.text import Text

from offbeat.report.labels import short_keys
from offbeat.report.seed_statistics import Difference, Stat
from offbeat.report.table import Table, TableRow
from offbeat.units import Unit, mean_text, number_text


@dataclass(frozen=True, slots=True)
class Cells:
    """A table as words: the column heads, and one tuple of equal length per row."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, rows: Sequence[dict[str, str]]) -> "Cells":
        """The cells of rows, one or more, by the heads of their columns."""
        return cls(tuple(rows[0]), tuple(tuple(row.values()) for row in rows))


def to_cells(table: Table) -> Cells:
    """Write the numbers of each label as a reader wants them; "-" for a missing one.

    The first columns are the label and the options in which labels of one name differ.

    Args:
        table: A table of one row or more.
    """
    return Cells.of([_names(row, table) | _cells(row, table, table.unit) for row in table.rows])


def difference_cells(table: Table) -> Cells | None:
    """Write how each label differs from the baseline, seed by seed; None where there is no other label."""
    rows = [
        _names(row, table) | _differences(row, table, table.unit)
        for row in table.rows
        if row.label != table.baseline
    ]
    return Cells.of(rows) if rows else None


def relative_text(row: TableRow) -> str:
    """Write a relative time as FedCompass's Table 1 does: "1.00x", or "-"; a bound as "> 1.2x"."""
    if row.relative is None:
        return "-"
    sign = f"{row.relative_bound} " if row.relative_bound else ""
    if not row.relative_std:
        return f"{sign}{row.relative:.2f}x"
    return f"{sign}{number_text(row.relative, max(row.relative_std, 0.02))}x"


def time_text(row: TableRow, unit: Unit) -> str:
    """Write the time to the target: "36 ± 2", "36 ± 2, > 720" with seeds that did not get there, "> 720"."""
    reached = [] if row.time is None else [stat_text(row.time, 1 / unit.size)]
    others = [] if row.beyond is None else [f"> {number_text(row.beyond / unit.size)}"]
    return ", ".join(reached + others) or "-"


def stat_text(found: Stat | None, scale: float = 1.0) -> str:
    """Write a mean and its deviation over seeds, "51.2 ± 0.2"; "-" for a missing one."""
    if found is None:
        return "-"
    return mean_text(found.mean * scale, None if found.spread is None else found.spread * scale)


def difference_text(found: Difference | None, scale: float = 1.0) -> str:
    """Write a difference and its confidence interval, "+1.2 [-0.3, +2.7]"; "-" for a missing one."""
    if found is None:
        return "-"
    half = None if found.half is None else found.half * scale
    texts = [number_text(end * scale, half, sign=True) for end in (found.mean, *(found.interval or ()))]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]" if half is not None else f"{texts[0]} (one seed)"


def to_rich(table: Table) -> Group:
    """Return the table for a rich console: the headline above it, differences and notes below it."""
    differences = difference_cells(table)
    parts = [_rich_table(to_cells(table), None)]
    if differences is not None:
        parts.append(_rich_table(differences, f"Differences from {table.baseline}"))
    headline = [] if table.headline is None else [Text(table.headline, style="bold")]
    return Group(*headline, *parts, Text("\n".join(table.notes)))


def to_text(table: Table, width: int = 160) -> str:
    """Return the table and its notes as plain text, at most `width` characters wide."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, force_terminal=False).print(to_rich(table))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _rich_table(cells: Cells, title: str | None) -> rich.table.Table:
    columns = [
        Column(head, justify="right" if k else "left", min_width=_widest_word(cells, k))
        for k, head in enumerate(cells.heads)
    ]
    out = rich.table.Table(*columns, header_style="bold", box=SIMPLE_HEAD, title_justify="left")
    out.padding, out.title = (0, 1, 0, 0), None if title is None else Text(title)
    for row in cells.rows:
        out.add_row(*map(Text, row))
    return out


def _widest_word(cells: Cells, column: int) -> int:
    """Narrowest width at which no word of the head and no cell but a `mean ± std` is broken."""
    words = [*cells.heads[column].split(), *(part for row in cells.rows for part in row[column].split(" ± "))]
    return max(map(len, words))


def _names(row: TableRow, table: Table) -> dict[str, str]:
    """The label, with how many of its runs diverged, and the options in which labels of one name differ."""
    short, name = short_keys(table.options), row.name
    if row.diverged:
        name += " (diverged)" if row.diverged == row.seeds else f" ({row.diverged} of {row.seeds} diverged)"
    return {"label": name} | {short[key]: row.options.get(key, "-") for key in table.options}


def _cells(row: TableRow, table: Table, unit: Unit) -> dict[str, str]:
    """The numbers of a row by the heads of their columns."""
    target, measure = table.target, table.measure
    time = "time to target" if target is None else f"time to {measure.value_text(target)} ({unit.name})"
    return {
        "seeds": str(row.seeds),
        f"best {measure.title}": stat_text(row.best, measure.scale),
        "final (%)" if measure.is_share else "final": stat_text(row.final, measure.scale),
        time: "-" if target is None else time_text(row, unit),
        "relative time": relative_text(row),
        "reached": "-" if target is None else f"{row.reached} of {row.seeds}",
        "versions": stat_text(row.versions),
        "client tasks": stat_text(row.tasks),
        "mean staleness": stat_text(row.staleness),
        "idle (%)": stat_text(row.idle, 100.0),
        "clients at once": stat_text(row.at_once),
        "sent (MB)": stat_text(row.bytes, 1e-6),
    }


def _differences(row: TableRow, table: Table, unit: Unit) -> dict[str, str]:
    """The differences of a row by the heads of their columns."""
    target, measure = table.target, table.measure
    pairs = [found.n for found in (row.best_difference, row.final_difference) if found is not None]
    points = " (points)" if measure.is_share else ""
    return {
        "common seeds": str(max(pairs, default=0)),
        f"best {measure.words}{points}": difference_text(row.best_difference, measure.scale),
        f"final{points}": difference_text(row.final_difference, measure.scale),
        "time to target" if target is None else f"time to {measure.value_text(target)} ({unit.name})": (
            difference_text(row.time_difference, 1 / unit.size)
        ),
    }
