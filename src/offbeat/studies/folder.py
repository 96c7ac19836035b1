"""The folder of results: the checkout's, or a user's own."""

import os
from pathlib import Path

from offbeat.studies.measure import checkout
from offbeat.studies.rows import Results


def default_results() -> Results:
    """`studies/results` of the checkout that the package is in, else `offbeat/results` of the user's data."""
    root = checkout()
    if root is not None:
        return Results(root / "studies" / "results")
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Results(Path(home) / "offbeat" / "results")
