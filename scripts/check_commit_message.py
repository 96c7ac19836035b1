#!/usr/bin/env python3
"""Check a commit message: a subject of three words or more, and a body that says why.

    python scripts/check_commit_message.py FILE

Git's hook `commit-msg` calls it through pre-commit with the file of the message. The subject alone is enough
where a commit mends a typo and its subject says so. Commits that git names (`Merge branch …`) or that a
rebase melts away (`fixup! …`) are not checked. Exits with 1 and one line if the message does not pass.
"""

import re
import subprocess
import sys
from pathlib import Path

FEWEST_WORDS = 3
_WORD = re.compile(r"\S*[^\W\d_]\S*")
_TYPO = re.compile(r"\b(typos?|spelling|misspell\w*)\b", re.IGNORECASE)
_BY_GIT = re.compile(
    r"(fixup|squash|amend)! |Merge (remote-tracking )?(branch|branches|tag|commit|pull request) "
)
_TRAILER = re.compile(r"[A-Z][a-z]+(-[A-Za-z]+)+: ")  # such as Signed-off-by
_SCISSORS = re.compile(r"^\S+ -+ >8 -+$", re.MULTILINE)  # above the changes that `git commit -v` shows


def problem(message: str) -> str | None:
    """What is wrong with a message without git's comments; None where it passes.

    Args:
        message: The message as `git commit` records it.
    """
    subject, _, rest = message.strip().partition("\n")
    if _BY_GIT.match(subject):
        return None
    if len(_WORD.findall(subject)) < FEWEST_WORDS and not subject.startswith('Revert "'):
        return (
            f"the subject {subject!r} has fewer than {FEWEST_WORDS} words: say in the imperative what the "
            "commit changes, such as 'Refuse an empty list of sites'"
        )
    if rest and not rest.startswith("\n"):
        return (
            f"the line below the subject {subject!r} is not empty: the subject is one line, then a blank one"
        )
    if _TYPO.search(subject):
        return None
    body = " ".join(line for line in rest.splitlines() if not _TRAILER.match(line)).strip()
    if len(_WORD.findall(body)) < FEWEST_WORDS or body == subject:
        return (
            f"the commit {subject!r} has no body: say why in a sentence, below a blank line; only a typo "
            "needs none, and its subject says 'typo'"
        )
    return None


def recorded(text: str) -> str:
    """The message that git records of what is in its file: without comments and the shown changes."""
    above = _SCISSORS.split(text, maxsplit=1)[0]
    strip = ["git", "stripspace", "--strip-comments"]  # it knows the character of comments here
    return subprocess.run(
        strip, input=above, capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout


def main() -> int:
    """Check the message of the file that is the command's argument."""
    found = problem(recorded(Path(sys.argv[1]).read_text(encoding="utf-8")))
    if found is not None:
        print(f"commit message: {found}", file=sys.stderr)
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main())
