"""Text of others, such as a recipe's or a site's, on a terminal and in a line of a log."""

import json
from unicodedata import bidirectional, category

# Characters of these categories steer a terminal or begin a new line.
_CONTROL = frozenset({"Cc", "Cs", "Zl", "Zp"})
# Those of these directions reorder a line.
_REORDER = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})


def has_control(text: str) -> bool:
    """Whether a text has a character that steers a terminal, begins a new line or reorders the line.

    >>> has_control("F1 score"), has_control("F1\u2028score")
    (False, True)
    """
    return not text.isprintable() and any(
        category(c) in _CONTROL or bidirectional(c) in _REORDER for c in text
    )


def printable(text: str, kept: str = "") -> str:
    r"""The text, with characters that do not print as JSON writes them, such as one that moves the cursor.

    Args:
        text: The text.
        kept: Characters that stay.

    >>> printable("a\x1b[2Jé\n", kept="\n")
    'a\\u001b[2Jé\n'
    """
    if text.isprintable():
        return text
    # Python counts all spaces but one as characters that do not print.
    return "".join(
        c if c.isprintable() or c in kept or category(c) == "Zs" else json.dumps(c)[1:-1] for c in text
    )
