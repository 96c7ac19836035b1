"""The list of special commits is what git says."""

import pytest

from offbeat_papers import row_commits as script
from offbeat_papers.provenance import commit_state, is_early, special_commits, uncommitted


@pytest.mark.skipif(not script.has_whole_history(), reason="the history is cut off, or there is none")
def test_the_list_has_the_commits_that_the_history_has_not_and_those_before_the_rule() -> None:
    found = script.text_of(script.row_commits())
    assert found == script.WRITTEN.read_text(encoding="utf-8"), "python -m offbeat_papers.row_commits"
    assert script.state("0123456789ab") == "missing"
    assert script.state(f"{script.RULE}^") == "early"
    assert script.state(script.RULE) is script.state("HEAD") is None


def test_a_commit_is_clean_dirty_missing_or_unknown() -> None:
    gone = next(commit for commit, state in special_commits().items() if state == "missing")
    commits = ["0123456789ab", "0123456789ab-dirty", gone, f"{gone}-dirty", "unknown"]
    assert [*map(commit_state, commits)] == ["clean", "dirty", "missing", "dirty", "unknown"]
    assert uncommitted(commits) == 4


def test_a_commit_is_early_if_it_is_older_than_the_rule_or_of_unknown_age() -> None:
    old = next(commit for commit, state in special_commits().items() if state == "early")
    gone = next(commit for commit, state in special_commits().items() if state == "missing")
    assert commit_state(old) == "clean"
    commits = ["0123456789ab", "0123456789ab-dirty", old, f"{old}-dirty", gone, "unknown"]
    assert [*map(is_early, commits)] == [False, False, True, True, True, True]
