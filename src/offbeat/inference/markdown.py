"""Texts of others in a Markdown page: as they read, and never as markup.

A run's directory may come from anyone, and a site chooses its name. So a text has no character that Markdown
or HTML would take for markup: each stands as a numeric entity, which every renderer shows as the character.
"""

import re
from collections.abc import Iterable, Sequence

MOST_CHARACTERS = 200
"""Most characters of a text that are shown."""
_MARKUP = re.compile(r"[^\w\s.,;()%+/-]|_|(?<=www)\.", re.IGNORECASE)


def escaped(text: object) -> str:
    """A text without markup, for the middle of a line."""
    shown = " ".join(str(text).split())
    if len(shown) > MOST_CHARACTERS:
        shown = shown[:MOST_CHARACTERS] + "…"
    printable = "".join(c if c.isprintable() else "?" for c in shown)
    return _MARKUP.sub(lambda found: _entity(found[0]), printable)


def _entity(character: str) -> str:
    """A character that is ASCII as a numeric entity; no other character is markup."""
    return f"&#{ord(character)};" if character.isascii() else character


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table: its heads are Markdown, its cells are texts."""
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return [*lines, *(f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows)]


def code_block(text: str, language: str) -> list[str]:
    """A block of code whose fence is longer than every fence in the text."""
    printable = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", printable)), default=0))
    return [f"{fence}{language}", *printable.rstrip("\n").split("\n"), fence]
