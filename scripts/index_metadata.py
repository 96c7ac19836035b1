"""Make the README's links and pictures absolute, and name the project's addresses, for a package index.

    python scripts/index_metadata.py https://HOST/OWNER/NAME TAG [--docs https://…]

The README has relative links, which a checkout and its forks follow offline. An index has only the text. The
release gives the address of the repository that it is made from: so no file repeats that address. The files
are rewritten in place; `scripts/check_release.py` does it in a copy.
"""

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|#)([^)\s]+)\)")
_URLS = "[project.urls]"


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


def with_urls(project: str, repository: str, tag: str, docs: str) -> str:
    """Add the project's addresses to a pyproject.toml that has none."""
    if _URLS in project:
        raise SystemExit(f"pyproject.toml has {_URLS} already: leave it out, the release writes it")
    urls = {
        "Documentation": docs,
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
    }
    table = "\n".join([_URLS, *(f'{name} = "{url}"' for name, url in urls.items())])
    return project.replace(
        "\n[project.optional-dependencies]", f"\n{table}\n\n[project.optional-dependencies]", 1
    )


def rewrite(root: Path, repository: str, tag: str, docs: str | None = None) -> None:
    """Rewrite README.md and both pyproject.toml of a tree in place.

    Args:
        root: The tree.
        repository: Address of the repository, https://HOST/OWNER/NAME.
        tag: The tag of the release.
        docs: Address of the documentation. None means its pages in the repository.
    """
    pages = docs or f"{repository}/tree/{tag}/docs"
    readme = root / "README.md"
    readme.write_text(absolute_links(readme.read_text("utf-8"), repository, tag), encoding="utf-8")
    for project in (root / "pyproject.toml", root / "papers" / "pyproject.toml"):
        project.write_text(with_urls(project.read_text("utf-8"), repository, tag, pages), encoding="utf-8")


def _address(text: str) -> str:
    if not re.fullmatch(r"https://[^\s\"'()<>\\]+", text):
        raise argparse.ArgumentTypeError(f"{text} is no address: give one that begins with https://")
    return text.rstrip("/")


def main() -> None:
    """Rewrite the files of this checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("repository", type=_address, help="address of the repository")
    parser.add_argument("tag", help="tag of the release")
    parser.add_argument("--docs", type=_address, help="address of the documentation")
    words = parser.parse_args()
    rewrite(ROOT, words.repository, words.tag, words.docs)


if __name__ == "__main__":
    main()
