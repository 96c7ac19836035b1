"""The list of commits that the repository does not have is what git says."""

import pytest

from offbeat_papers.provenance import commit_state, missing_commits, uncommitted
from scripts import missing_commits as script


@pytest.mark.skipif(not script.has_whole_history(), reason="the history is cut off, or there is none")
def test_the_list_has_the_commits_of_rows_that_are_not_in_the_history() -> None:
    found = script.missing(script.row_commits())
    assert script.text_of(found) == script.WRITTEN.read_text(encoding="utf-8"), (
        "python scripts/missing_commits.py"
    )
    assert script.missing(["HEAD", "0123456789ab"]) == ["0123456789ab"]


def test_a_commit_is_clean_dirty_missing_or_unknown() -> None:
    gone = min(missing_commits())
    commits = ["0123456789ab", "0123456789ab-dirty", gone, f"{gone}-dirty", "unknown"]
    assert [*map(commit_state, commits)] == ["clean", "dirty", "missing", "dirty", "unknown"]
    assert uncommitted(commits) == 4
