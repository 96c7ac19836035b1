"""The section of CHANGELOG.md for a release, from the fragments in changes/.

    python scripts/release_notes.py 0.1.0                        # show it
    python scripts/release_notes.py 0.1.0 --date 2026-12-01 --write

towncrier reads the fragments. What stands under *Unreleased*, from before there were fragments, comes into
the same section. `--write` also deletes the fragments, and dates
CITATION.cff.
"""

import argparse
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
UNRELEASED = "## [Unreleased]"
_SECTION = re.compile(r"^## ", re.MULTILINE)


def fragments() -> list[Path]:
    """The fragments: all files of changes/ but its own two."""
    own = ("README.md", "template.md.jinja")
    return sorted(path for path in (ROOT / "changes").iterdir() if path.name not in own)


def rendered(version: str) -> str:
    """What towncrier makes of the fragments: a section, empty without fragments."""
    if not fragments():
        return ""
    command = [
        sys.executable,
        "-m",
        "towncrier",
        "build",
        "--draft",
        "--version",
        version,
        "--date",
        "2000-01-01",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode:
        sys.exit(f"towncrier: {done.stderr.strip()}")
    return done.stdout


def by_kind(section: str) -> dict[str, str]:
    """The texts of a section by kind; under "" what comes before the first."""
    first, *rest = re.split(r"^### (.+)$", section, flags=re.MULTILINE)
    return {
        "": first.strip(),
        **{kind.strip(): text.strip() for kind, text in zip(rest[::2], rest[1::2], strict=True)},
    }


def split(changelog: str) -> tuple[str, str, str]:
    """A changelog in three: its head, the text under *Unreleased*, and the sections of earlier releases."""
    starts = [found.start() for found in _SECTION.finditer(changelog)] or [len(changelog)]
    head, first = changelog[: starts[0]], changelog[starts[0] :]
    if not first.startswith(UNRELEASED):
        return head, "", first
    end = starts[1] if len(starts) > 1 else len(changelog)
    return head, changelog[starts[0] + len(UNRELEASED) : end], changelog[end:]


def section(version: str, day: str, unreleased: str, made: str) -> str:
    """The section of a release.

    Args:
        version: Its number.
        day: Its date, YYYY-MM-DD.
        unreleased: Text under *Unreleased*.
        made: What towncrier has made of the fragments.
    """
    old, new = by_kind(unreleased), by_kind(made)
    lines = [f"## [{version}] - {day}", "", *([old[""], ""] if old[""] else [])]
    unknown = ({*old, *new} - {"", *KINDS}) or {}
    if unknown:
        sys.exit(f"the changelog has sections of no known kind: {', '.join(sorted(unknown))}")
    for kind in KINDS:
        texts = [text for text in (new.get(kind, ""), old.get(kind, "")) if text]
        if texts:
            lines += [f"### {kind}", "", "\n".join(texts), ""]
    return "\n".join(lines)


def with_date(citation: str, day: str) -> str:
    """CITATION.cff with the day of the release below its version."""
    without = re.sub(r"^date-released: .*\n", "", citation, flags=re.MULTILINE)
    return re.sub(r"^(version: .*\n)", rf"\1date-released: {day}\n", without, count=1, flags=re.MULTILINE)


def main() -> None:
    """Show the section, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("version", help="number of the release")
    parser.add_argument("--date", default=date.today().isoformat(), help="its date; default: today")
    parser.add_argument(
        "--write", action="store_true", help="write CHANGELOG.md and CITATION.cff, delete the fragments"
    )
    words = parser.parse_args()
    path = ROOT / "CHANGELOG.md"
    head, unreleased, earlier = split(path.read_text(encoding="utf-8"))
    made = section(words.version, words.date, unreleased, rendered(words.version))
    if not words.write:
        print(made)
        return
    path.write_text(f"{head}{made}\n{earlier}".rstrip("\n") + "\n", encoding="utf-8")
    cited = ROOT / "CITATION.cff"
    cited.write_text(with_date(cited.read_text(encoding="utf-8"), words.date), encoding="utf-8")
    for fragment in fragments():
        fragment.unlink()


if __name__ == "__main__":
    main()
