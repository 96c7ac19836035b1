"""Write which commits of the results' rows the repository has not: python scripts/missing_commits.py

A row names the commit of the code that made it. Rows of commits that were rewritten later, or of a checkout
with changes, cannot be made again with the same code: pages and the dataset mark them. It needs the whole
history.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from offbeat_papers.provenance import DIRTY
from offbeat_papers.rows import Results

ROOT = Path(__file__).parents[1]
WRITTEN = ROOT / "papers" / "src" / "offbeat_papers" / "missing-commits.csv"


def row_commits() -> set[str]:
    """The commits that rows name, without the mark of changes."""
    results = Results(ROOT / "papers" / "results")
    commits = {row.commit for study in results.studies() for row in results.all_rows(study)}
    return {commit.removesuffix(DIRTY) for commit in commits} - {"unknown"}


def missing(commits: Iterable[str]) -> list[str]:
    """Those of some commits that HEAD does not come from, sorted."""
    return sorted(commit for commit in commits if not _is_ancestor(commit))


def _is_ancestor(commit: str) -> bool:
    words = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def has_whole_history() -> bool:
    """Whether this is a checkout whose history is not cut off."""
    words = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() == "false"


def text_of(commits: Iterable[str]) -> str:
    """The file's text."""
    return "\n".join(["commit", *commits]) + "\n"


def main() -> int:
    """Write the file; 2 where the history is cut off or is not there."""
    if not has_whole_history():
        print("the commits of rows are looked up in the whole history: git fetch --unshallow")
        return 2
    WRITTEN.write_text(text_of(missing(row_commits())), encoding="utf-8")
    print(f"wrote {WRITTEN}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
