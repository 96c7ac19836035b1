"""The commits that rows are of: whether the code that made a row can be checked out."""

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Literal

CommitState = Literal["clean", "dirty", "missing", "unknown"]
"""What is known of a row's commit: it can be checked out; the checkout had changes that no commit has; the
repository does not have it; or the run was made outside of a checkout."""
DIRTY = "-dirty"
"""End of a row's commit where files of the packages were changed."""
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
MARK = "†"
"""Note beside numbers that rest on a row whose commit cannot be checked out."""


def commit_state(commit: str) -> CommitState:
    """The state of a row's commit."""
    if commit.endswith(DIRTY):
        return "dirty"
    if commit in missing_commits():
        return "missing"
    return "clean" if _COMMIT.fullmatch(commit) else "unknown"


@cache
def missing_commits() -> frozenset[str]:
    """The commits of rows that the repository has not; `scripts/missing_commits.py` writes the list."""
    text = files("offbeat_papers").joinpath("missing-commits.csv").read_text(encoding="utf-8")
    return frozenset(text.split()[1:])


def uncommitted(commits: Iterable[str]) -> int:
    """Number of rows, given by their commits, whose code cannot be checked out."""
    return sum(commit_state(commit) != "clean" for commit in commits)
