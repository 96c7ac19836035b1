"""Write the commands that install Offbeat on all pages, as `offbeat.core.installation.ON_INDEX` has them.

    python scripts/install_lines.py

Pages have the command as text, because people read them in a checkout too. A release changes `ON_INDEX` and
runs this script. `docs/install.md` is left alone: its text about an index comes from the same variable when
the documentation is built.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from offbeat.core.installation import ON_INDEX, install_command, papers_install_command

ROOT = Path(__file__).parents[1]
PATTERNS = (
    "README.md", "papers/README.md", "docs/**/*.md", "deploy/**/*.md", "examples/**/*.py",
    "examples/**/*.ipynb", "benchmarks/**/*.py", "src/**/*.txt",
)  # fmt: skip
INSTALL_PAGE = ROOT / "docs" / "install.md"
_WHERE = "   # in a checkout"
_QUOTE = r"""\\?["']?"""
_COMMAND = re.compile(
    rf"(?P<pip>pip\s+install\s+)(?:"
    rf"(?P<papers>-e \. -e \./papers\b(?!\[)|{_QUOTE}offbeat-papers(?![\w\[-]){_QUOTE})"
    rf"|(?:-e )?{_QUOTE}(?:\./papers|offbeat-papers)\[(?P<extra>[\w,]+)\]{_QUOTE}"
    rf"|(?:-e )?{_QUOTE}(?:\.|offbeat)(?![\w./-])(?:\[(?P<extras>[\w,]+)\])?{_QUOTE})"
)
_ALONE = re.compile(rf"^(?P<line>(?:\$ )?(?:{_COMMAND.pattern}))(?: +# in a checkout)?$", re.MULTILINE)
"""A command on a line of its own, as in a block of code."""


def pages() -> Iterator[Path]:
    """The files that can have such a command."""
    found = {path for pattern in PATTERNS for path in ROOT.glob(pattern)}
    yield from sorted(found - {INSTALL_PAGE})


def with_commands(text: str, on_index: bool = ON_INDEX) -> str:
    """A page whose commands install from a package index, or from a checkout.

    Args:
        text: The page.
        on_index: Whether an index has Offbeat.
    """

    def command(found: re.Match[str]) -> str:
        if found["papers"]:
            made = install_command("papers", on_index=on_index)
        elif found["extra"]:
            made = papers_install_command(found["extra"], on_index)
        else:
            extras = found["extras"].split(",") if found["extras"] else []
            made = install_command(*extras, on_index=on_index)
        escaped = made.replace('"', '\\"') if '\\"' in found[0] else made  # in the JSON of a notebook
        return found["pip"] + escaped.removeprefix("pip install ")

    def alone(found: re.Match[str]) -> str:
        return found["line"] if on_index else found["line"] + _WHERE

    return _ALONE.sub(alone, _COMMAND.sub(command, text))


def main() -> None:
    """Rewrite the pages in place, and name those that have changed."""
    for path in pages():
        text = path.read_text(encoding="utf-8")
        if (made := with_commands(text)) != text:
            path.write_text(made, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
