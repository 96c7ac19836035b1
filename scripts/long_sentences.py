"""Long sentences of the documentation: a figure for reviewers, without a limit.

    python scripts/long_sentences.py [PAGE ...] [--words N] [--show]

Prints the number of sentences with more than N words for each page that has some, and their sum. With
`--show` it prints the sentences instead, each with its page and the first line of its paragraph. Code,
tables, headings and generated pages are left out. A list item is a paragraph. Without PAGE the script reads
all pages of the documentation and those of the root.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = ("docs/papers",)
"""Beginnings of the paths of pages that scripts write."""

_FENCE = re.compile(r"^\s*(```|~~~)")
_NO_PROSE = re.compile(r"^\s*(\||#|!\[|:::|<!--|--8<--)|^ {4}")
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
_END = re.compile(r"[.!?][\")*`]*\s+(?=[\"(*\[]*[A-Z0-9`])")


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """The paragraphs and list items of a page, each with the number of its first line."""
    first, held, code = 0, list[str](), False
    for number, line in enumerate([*text.split("\n"), ""], 1):
        fence = _FENCE.match(line) is not None
        outside = code or fence or not line.strip() or (not held and _NO_PROSE.match(line))
        if held and (outside or _ITEM.match(line)):
            yield first, " ".join(held)
            held = []
        code ^= fence
        if not outside:
            first = first if held else number
            held.append(_ITEM.sub("", line).strip())


def sentences(text: str, words: int) -> list[tuple[int, str]]:
    """The sentences of a page with more than `words` words, with the line at which their paragraph begins."""
    return [
        (line, sentence)
        for line, paragraph in paragraphs(text)
        for sentence in _END.split(paragraph)
        if len(sentence.split()) > words
    ]


def pages() -> list[str]:
    """The pages that people write, relative to the root."""
    found = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
    names = (path.relative_to(ROOT).as_posix() for path in found)
    return [name for name in names if not name.startswith(GENERATED)]


def main() -> None:
    """Read and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="default: all pages that people write")
    parser.add_argument("--words", type=int, default=45, metavar="N", help="default: 45")
    parser.add_argument("--show", action="store_true", help="print the sentences")
    given = parser.parse_args()
    total = 0
    for name in given.pages or pages():
        long = sentences((ROOT / name).read_text(encoding="utf-8"), given.words)
        total += len(long)
        if given.show:
            for line, sentence in long:
                print(f"{name}:{line}: {len(sentence.split())} words: {sentence}")
        elif long:
            print(f"{name:<40}{len(long):>6}")
    print(f"{f'sentences above {given.words} words':<40}{total:>6}")


if __name__ == "__main__":
    main()
