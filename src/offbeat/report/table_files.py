"""The comparison table as a file: CSV with all digits in base units, Markdown, LaTeX."""

import html
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from offbeat.core.errors import UsageError
from offbeat.core.extras import requires_extra
from offbeat.documents import user_path
from offbeat.report.render import Cells, difference_cells, to_cells
from offbeat.report.seed_statistics import Difference, Stat
from offbeat.report.table import Table, TableRow
from offbeat.runs.csv_text import csv_text

_STATS = ("best", "final", "time", "versions", "tasks", "staleness", "idle", "at_once", "bytes")
_DIFFERENCES = ("best_difference", "final_difference", "time_difference")
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": "$<$", ">": "$>$",
    "|": r"\textbar{}", "…": r"\dots{}", "[": "{[}", "]": "{]}", "*": "{*}", "“": "``", "”": "''",
    "≈": r"$\approx$",
}  # fmt: skip


def to_markdown(table: Table) -> str:
    """Return the table as Markdown, followed by the differences from the baseline and the notes as a list."""
    differences = difference_cells(table)
    lines = _markdown_table(to_cells(table))
    if differences is not None:
        lines += [f"Differences from {_markdown_text(table.baseline)}:", "", *_markdown_table(differences)]
    lines += [f"- {_markdown_text(note)}" for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"


def to_records(table: Table) -> list[dict[str, object]]:
    """Return the numbers unrounded, a mapping for each label: times in seconds, shares in [0, 1].

    Each quantity has mean, std (ddof = 1) and n, the number of seeds; a difference from the baseline has
    mean, both ends of its 95 % confidence interval, and n. None where there is none.
    """
    return [_record(row, table) for row in table.rows]


def to_csv(table: Table) -> str:
    """Return the mappings of `to_records` as CSV; cells are empty where there is no number."""
    rows = to_records(table)
    return csv_text([list(rows[0]), *(list(row.values()) for row in rows)])


def to_frame(table: Table) -> Any:
    """Return the mappings of `to_records` as a data frame; NaN where there is no number.

    Raises `UsageError` where pandas is not installed.
    """
    with requires_extra("pandas", "to_pandas: "):
        import pandas
    frame = pandas.DataFrame(to_records(table))
    texts = {"label", "name", "metric", "baseline", *table.options}
    # A column without any value has numbers too.
    return frame.astype({name: float for name in frame if name not in texts and frame[name].dtype == object})


def to_latex(table: Table) -> str:
    r"""Return the table as a LaTeX `tabular` with the rules of booktabs, the differences as a second one.

    The notes are comments. The document needs \usepackage{booktabs}, and UTF-8 for labels beyond ASCII.
    """
    differences = difference_cells(table)
    lines = [*(f"% {note}" for note in table.notes), *_latex_table(to_cells(table))]
    if differences is not None:
        baseline = " ".join(table.baseline.split())
        lines += ["", f"% Differences from {baseline}.", *_latex_table(differences)]
    return "\n".join(lines) + "\n"


FORMATS: Mapping[str, Callable[[Table], str]] = {".csv": to_csv, ".md": to_markdown, ".tex": to_latex}


def table_format(path: Path) -> Callable[[Table], str]:
    """The function that writes a table to a file of this name. Raises `UsageError` for an unknown suffix."""
    if path.suffix not in FORMATS:
        raise UsageError(f"table {path} is not allowed: let its name end with {', '.join(FORMATS)}")
    return FORMATS[path.suffix]


def write_table(table: Table, path: str | Path) -> Path:
    """Write a table as CSV, Markdown or LaTeX, as the file's name ends.

    Args:
        table: The table.
        path: The file, *.csv, *.md or *.tex; its directory is made.

    Returns:
        The file.

    Raises:
        UsageError: The name ends otherwise.
    """
    path = user_path(path)
    text = table_format(path)(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _record(row: TableRow, table: Table) -> dict[str, object]:
    cells: dict[str, object] = {"label": row.label, "name": row.name}
    cells |= {key: row.options.get(key) for key in table.options}
    cells |= {
        "seeds": row.seeds,
        "diverged": row.diverged,
        "metric": table.measure.name,
        "target": table.target,
    }
    cells |= {"reached": row.reached, "time_beyond": None if table.target is None else row.beyond}
    cells |= {"baseline": table.baseline, "relative": row.relative, "relative_std": row.relative_std}
    cells |= {"relative_bound": row.relative_bound or None}
    for name in _STATS:
        stat: Stat | None = getattr(row, name)
        known = (None, None, 0) if stat is None else (stat.mean, stat.spread, stat.n)
        cells |= dict(zip((f"{name}_mean", f"{name}_std", f"{name}_n"), known, strict=True))
    for name in _DIFFERENCES:
        found: Difference | None = getattr(row, name)
        low, high = (found and found.interval) or (None, None)
        cells |= {f"{name}_mean": found and found.mean, f"{name}_low": low, f"{name}_high": high}
        cells |= {f"{name}_n": found.n if found else 0}
    return cells


def _markdown_table(cells: Cells) -> list[str]:
    return [
        _markdown_line(cells.heads),
        "|" + "|".join([" :-- "] + [" --: "] * (len(cells.heads) - 1)) + "|",
        *map(_markdown_line, cells.rows),
        "",
    ]


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_markdown_text, cells)) + " |"


def _markdown_text(text: str) -> str:
    plain = " ".join(text.split())
    return html.escape(plain.replace("\\", "\\\\").replace("|", "\\|"), quote=False)


def _latex_table(cells: Cells) -> list[str]:
    return [
        rf"\begin{{tabular}}{{l{'r' * (len(cells.heads) - 1)}}}",
        r"\toprule",
        _latex_line(cells.heads),
        r"\midrule",
        *map(_latex_line, cells.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex_text, cells)) + r" \\"


def _latex_text(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
    # LaTeX needs mathematics for a minus; a bare "-" is a hyphen.
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)
