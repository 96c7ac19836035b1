"""Papers repeated: studies of tables and figures, rows of results, verdicts on claims, tuning, a leaderboard.

`offbeat reproduce` is the command. A study of one's own is a file like those in `studies/`.
"""

from offbeat.lazy import exports

__all__, __getattr__, __dir__ = exports(__name__)
