"""Tables as CSV, whose texts a spreadsheet does not take for formulas."""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

# Some spreadsheets take the wide forms of these characters for them, and leave out a line break before them.
_BEGIN_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def csv_text(rows: Iterable[Sequence[Any]], end: str = "\n") -> str:
    """Rows as CSV, with an apostrophe before a text that a spreadsheet would compute, such as a label.

    Args:
        rows: The rows, the heads first. None is an empty cell.
        end: How a line ends.

    >>> csv_text([["label", "lr"], ["=1+1", -0.1]])
    "label,lr\\n'=1+1,-0.1\\n"
    """
    out = StringIO(newline="")
    writer = csv.writer(out, lineterminator=end)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def text_of(cell: str) -> str:
    """The text of a cell that `csv_text` wrote."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_BEGIN_FORMULAS) else cell


def _cell(value: Any) -> Any:
    """A cell, in which a number, also one as a text, stays as it is."""
    if not isinstance(value, str) or not value.startswith(_BEGIN_FORMULAS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
