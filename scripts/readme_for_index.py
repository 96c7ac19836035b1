"""Make the README's links and pictures absolute, so that a package index shows them.

    python scripts/readme_for_index.py https://HOST/OWNER/NAME TAG

The README has relative links, which a checkout and its forks follow offline. An index has only the text. The
release gives the address of the repository that it is made from: so no file repeats that address.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|#)([^)\s]+)\)")


def absolute_links(text: str, repository: str, tag: str) -> str:
    """Give every relative link of a page the address of its file at a tag.

    Args:
        text: The page, in Markdown.
        repository: Address of the repository, https://HOST/OWNER/NAME.
        tag: The tag or commit whose files the links show.
    """

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        words = _LINK.sub(absolute, link[2])  # a picture may be what is linked
        return f"{link[1]}[{words}]({repository}/{kind}/{tag}/{link[3]})"

    return _LINK.sub(absolute, text)


def main() -> None:
    """Rewrite the README in place."""
    if len(sys.argv) != 3 or not sys.argv[1].startswith("https://"):
        sys.exit("usage: python scripts/readme_for_index.py https://HOST/OWNER/NAME TAG")
    readme = ROOT / "README.md"
    text = absolute_links(readme.read_text("utf-8"), sys.argv[1].rstrip("/"), sys.argv[2])
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
