"""The commands that are options of other commands now."""

MOVED = {
    "journal": "offbeat replay RUN --print",
    "kit": "offbeat check KIT --offline",
    "statistics": "offbeat report RUN",
}
"""By the name of a command that there was, what to type instead."""
