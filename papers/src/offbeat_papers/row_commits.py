"""Write what is known of the commits of the results' rows: python -m offbeat_papers.row_commits

A row names the commit of the code that made it. Rows of commits that were rewritten later, or of a checkout
with changes, cannot be made again with the same code: pages and the dataset mark them. Pages also say which
verdicts rest on rows from before the rule of verdicts was frozen. The command needs the whole history.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from offbeat_papers.folder import default_results
from offbeat_papers.provenance import COMMITS, DIRTY

WRITTEN = Path(__file__).with_name(COMMITS)
RULE = "b803f0c3fc71fe5d0b07733f2b9a012719c91986"
"""The commit that froze the rule of verdicts."""


def row_commits() -> set[str]:
    """The commits that rows name, without the mark of changes."""
    results = default_results()
    commits = {row.commit for study in results.studies() for row in results.all_rows(study)}
    return {commit.removesuffix(DIRTY) for commit in commits} - {"unknown"}


def state(commit: str) -> str | None:
    """What is special of a commit: HEAD does not come from it ("missing"), or it is older than the rule."""
    if not _is_ancestor(commit, "HEAD"):
        return "missing"
    return None if _is_ancestor(RULE, commit) else "early"


def _is_ancestor(commit: str, of: str) -> bool:
    return _git("merge-base", "--is-ancestor", commit, of).returncode == 0


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(WRITTEN.parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def has_whole_history() -> bool:
    """Whether this is a checkout whose history is not cut off."""
    return _git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"


def text_of(commits: Iterable[str]) -> str:
    """The file's text: the commits of which something is special."""
    found = ((commit, state(commit)) for commit in sorted(commits))
    return "\n".join(["commit,state", *(f"{commit},{own}" for commit, own in found if own)]) + "\n"


def main() -> int:
    """Write the file; 2 where the history is cut off or is not there."""
    if not has_whole_history():
        print("the commits of rows are looked up in the whole history: git fetch --unshallow")
        return 2
    WRITTEN.write_text(text_of(row_commits()), encoding="utf-8")
    print(f"wrote {WRITTEN}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
