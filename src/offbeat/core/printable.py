"""Text of others, such as a recipe's or a site's, on a terminal and in a line of a log."""

import json
from unicodedata import category


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
