"""The folder of results: the checkout's, or a user's own."""

import os
from pathlib import Path

from offbeat_papers.measure import checkout
from offbeat_papers.rows import Results


def default_results() -> Results:
    """`papers/results` of the packages' checkout, else `offbeat/results` of the user's data directory."""
    root = checkout()
    if root is not None:
        return Results(root / "papers" / "results")
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Results(Path(home) / "offbeat" / "results")
