"""The commits that rows are of: whether the code that made a row can be checked out, and its age."""

import re
from collections.abc import Iterable, Mapping
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
COMMITS = "row-commits.csv"
"""File of the commits of which something is special; `offbeat_papers.row_commits` writes it."""


def commit_state(commit: str) -> CommitState:
    """The state of a row's commit."""
    if commit.endswith(DIRTY):
        return "dirty"
    if special_commits().get(commit) == "missing":
        return "missing"
    return "clean" if _COMMIT.fullmatch(commit) else "unknown"


def is_early(commit: str) -> bool:
    """Whether a row's commit is from before the rule of verdicts was frozen, or its age cannot be known."""
    return commit.removesuffix(DIRTY) in special_commits() or commit_state(commit) == "unknown"


@cache
def special_commits() -> Mapping[str, str]:
    """The commits that the repository has not ("missing"), or that are older than the rule ("early")."""
    text = files("offbeat_papers").joinpath(COMMITS).read_text(encoding="utf-8")
    pairs = (line.partition(",") for line in text.splitlines()[1:])
    return {commit: state for commit, _, state in pairs}


def uncommitted(commits: Iterable[str]) -> int:
    """Number of rows, given by their commits, whose code cannot be checked out."""
    return sum(commit_state(commit) != "clean" for commit in commits)
