"""The names that people give to runs: one rule for recipes, the command line and Python."""

from typing import Any

from offbeat.core.errors import UsageError
from offbeat.core.printable import has_control

MOST_BYTES = 255
"""Most bytes of a file's name on the usual file systems: a comparison has a directory for each label."""


def check_label(label: Any, what: str) -> str:
    """Check what a person calls a run.

    Args:
        label: The label.
        what: What gives it, as the error begins, such as "--label".

    Raises:
        UsageError: It is no text, or cannot be the name of a directory.
    """
    if not isinstance(label, str):
        why = "give a text"
    elif not label.strip():
        why = "give what reports shall call the run"
    elif has_control(label):
        why = "leave out characters that cannot be printed"
    elif label.startswith(".") or "/" in label or "\\" in label:
        why = "it names a directory: leave out /, \\ and a leading dot"
    elif (size := len(label.encode())) > MOST_BYTES:
        why = f"it names a directory, and has {size} bytes: at most {MOST_BYTES} are allowed"
    else:
        return label
    shown = repr(label)
    raise UsageError(f"{what} {shown if len(shown) <= 60 else shown[:57] + '...'} is not allowed: {why}")
