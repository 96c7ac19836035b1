"""The command that archives a run's old journal rows."""

import re
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.console import out
from offbeat.core.errors import UsageError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def archive(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a run, or a server's state directory")],
    before: Annotated[
        str, typer.Option(help="age of the rows, by the run's clock, at its last row: 30d, 12h, 90m or 45s")
    ] = "30d",
) -> None:
    """Compress a run's old journal rows within its database.

    What reads the run sees no difference.
    """
    from offbeat.runs.archive import archive as archive_run
    from offbeat.units import size_text

    seconds = _seconds(before)
    found = archive_run(directory, seconds)
    if not found.rows:
        out.print(f"nothing to archive: no 4,096 rows before the checkpoint are older than {before}")
        return
    sizes = f"{size_text(found.before)} before, {size_text(found.after)} now"
    out.print(f"archived {found.rows:,} journal rows; run.db: {sizes}", markup=False)


def _seconds(text: str) -> float:
    """Seconds of a text such as 30d. Raises `UsageError` for another one."""
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None:
        raise UsageError(f"--before {text} is not allowed: give a number with its unit: 30d, 12h, 90m or 45s")
    return float(found[1]) * _SECONDS[found[2]]
