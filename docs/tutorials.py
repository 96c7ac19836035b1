"""Run the Python of the tutorials, write what it prints below each block, and keep their pictures.

    python docs/tutorials.py [NAME...]

The blocks of a page are one script, run in an empty folder. A line `<!-- picture: FILE -->` names a file that
the script writes; it becomes `images/tutorial_NAME.png`. The tests run the pages again and compare.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

DOCS = Path(__file__).resolve().parent
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"^<!-- picture: (\S+) -->$", re.MULTILINE)


def pages() -> list[Path]:
    """The tutorials."""
    return sorted((DOCS / "tutorials").glob("*.md"))


def outputs(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Run the blocks of a page in the current folder: what the page says each prints, and what it prints."""
    names: dict[str, object] = {"__name__": f"tutorial_{name}"}
    for block in BLOCK.finditer(text):
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile(block[1], f"{name}.md", "exec"), names)
        yield block[2] or "", printed.getvalue()


def with_outputs(text: str, printed: list[str]) -> str:
    """The page with what each of its blocks prints."""
    remaining = iter(printed)

    def block(found: re.Match[str]) -> str:
        own = next(remaining)
        return f"```python\n{found[1]}```\n" + (f"\n```text\n{own}```\n" if own else "")

    return BLOCK.sub(block, text)


def main() -> None:
    """Bring the pages that are named up to date, or all."""
    for page in [page for page in pages() if page.stem in sys.argv[1:] or not sys.argv[1:]]:
        text = page.read_text("utf-8")
        with TemporaryDirectory() as folder, chdir(folder):
            printed = [now for _, now in outputs(text, page.stem)]
            for name in PICTURE.findall(text):
                shutil.copy(name, DOCS / "images" / f"tutorial_{page.stem}.png")
        page.write_text(with_outputs(text, printed), encoding="utf-8")
        print(f"{page.name}: {len(printed)} blocks")


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "100")
    main()
