"""Check that each quote of the studies' claims is in its paper: python scripts/check_quotes.py FOLDER

FOLDER has the papers' texts as .txt files, which are not in the repository. White space, case, hyphens at the
ends of lines and the marks of quotes and formulas do not count; "..." in a quote stands for words left out. A
text made of a page repeats its formulas in several notations: a quote with a letter of a formula is searched
for by its words of three letters and more, in order and near each other.
"""

import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from offbeat_papers.load import built_in_studies, load_study

_GAP = 40
"""Most characters between two words of a quote with a formula."""


def plain(text: str) -> str:
    """Lower-case letters, figures and single spaces."""
    text = unicodedata.normalize("NFKC", text).casefold().replace("\u00ad", "")
    text = re.sub(r"-\s*\n\s*", "", text)
    return " ".join(re.sub(r"[^\w%.]+", " ", text).split())


def occurs(quote: str, text: str) -> bool:
    """Whether a quote is in a paper's text that is `plain`.

    Args:
        quote: The quote.
        text: The text.
    """
    place = 0
    for part in re.split(r"\.\.\.|…", quote):
        found = re.compile(_pattern(part)).search(text, place)
        if found is None:
            return False
        place = found.end()
    return True


def _pattern(part: str) -> str:
    words = plain(part).strip(". ").split()
    if part.isascii():
        return r"\b" + " ".join(map(re.escape, words))
    long = [re.escape(word) for word in words if len(word) > 2 and word.isalpha() and word.isascii()]
    return r"\b" + rf"\b.{{0,{_GAP}}}?\b".join(long)


def quotes() -> Iterator[tuple[str, str, str]]:
    """Study, title of its paper and quote of all claims that have one."""
    for name, path in built_in_studies().items():
        study = load_study(path)
        for item in study.items.values():
            yield from ((name, study.paper, claim.quote) for claim in item.claims if claim.quote)


def main(folder: Path) -> int:
    """Print each quote that no text of the folder has; 1 if there are any."""
    texts = [plain(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.txt"))]
    if not texts:
        print(f"{folder} has no .txt files: give the folder of the papers' texts")
        return 2
    found = sorted(set(quotes()))
    papers = {paper: [text for text in texts if plain(_title(paper)) in text[:3000]] for _, paper, _ in found}
    missing = [each for each in found if not any(occurs(each[2], text) for text in papers[each[1]] or texts)]
    for study, _, quote in missing:
        print(f"{study}: not in the paper: {quote}")
    print(f"{len(found) - len(missing)} of {len(found)} quotes are in the papers")
    return int(bool(missing))


def _title(paper: str) -> str:
    """The title in "A. Author and others, A Title, 2024"."""
    return max(paper.split(","), key=len)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
