"""The commands that are options of other commands now."""

MOVED = {
    "archive": "offbeat serve RECIPE --state DIR --set server.archive=SECONDS",
    "certificate": "offbeat enrol --state DIR --host NAME",
    "dashboard-token": "offbeat enrol --dashboard --state DIR",
    "journal": "offbeat replay RUN --print",
    "kit": "offbeat check KIT --offline",
    "statistics": "offbeat report RUN",
}
"""By the name of a command that there was, what to type instead."""
