"""Lines of code by folder, without blank lines, comments and docstrings; and what a change adds.

    python scripts/count_lines.py [FOLDER ...] [--against REV]

Prints a line for each folder right below FOLDER, and the sum. Without FOLDER it is each folder of the
packages, and benchmarks, deploy, scripts and tests as a whole. With REV each line has what the working tree
has more than that commit. Generated modules (`*_pb2.py`) are not counted.
"""

import argparse
import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePath

ROOT = Path(__file__).parents[1]
PACKAGES = ("src/offbeat", "papers/src/offbeat_papers")
WHOLE = ("benchmarks", "deploy", "scripts", "tests")

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache  # most files are as they were
def code_lines(text: str) -> int:
    """The number of lines of `text` that hold code."""
    lines = {
        number
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    docstrings = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)
        ):
            lines.update(_lines(node))  # a blank line within it, too
        for statement in node.body if isinstance(node, DOCUMENTED) else ():
            match statement:
                case ast.Expr(ast.Constant(str())):  # of a module's names, too
                    docstrings.update(_lines(statement))
    return len(lines - docstrings)


def _lines(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or 0) + 1)


def worktree(root: Path, folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Path and text of each module of the working tree."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def committed(root: Path, folders: Iterable[str], revision: str) -> Iterator[tuple[str, str]]:
    """Path and text of each module of a commit."""
    listed = _git(root, "ls-tree", "-r", "-z", "--name-only", "--full-tree", revision, "--", *folders)
    paths = [path for path in listed.decode().split("\0") if path.endswith(".py")]
    wanted = "".join(f"{revision}:{path}\n" for path in paths)
    rest = _git(root, "cat-file", "--batch", given=wanted)
    for path in paths:
        head, _, rest = rest.partition(b"\n")
        size = int(head.split()[-1])
        yield path, rest[:size].decode("utf-8")
        rest = rest[size + 1 :]


def _git(root: Path, *words: str, given: str = "") -> bytes:
    """What git prints; its first line of errors ends the script."""
    done = subprocess.run(
        ["git", "-C", str(root), *words], input=given.encode(), capture_output=True, check=False
    )
    if done.returncode:
        print(done.stderr.decode().partition("\n")[0], file=sys.stderr)
        sys.exit(2)
    return done.stdout


def counted(files: Iterable[tuple[str, str]], folders: Iterable[str]) -> Counter[str]:
    """Lines of code by folder: those right below `folders`, and `WHOLE` as they are."""
    below = {PurePath(folder).as_posix() for folder in folders} - {*WHOLE}
    counts = Counter[str]()
    for name, text in files:
        path = PurePath(name)
        if not path.stem.endswith("_pb2"):
            parents = [parent.as_posix() for parent in path.parents]
            depth = next((place for place, parent in enumerate(parents) if parent in below), None)
            shown = parents[max(0, depth - 1)] if depth is not None else path.parts[0]
            counts[shown] += code_lines(text)
    return counts


def lines(now: Counter[str], before: Counter[str] | None) -> Iterator[str]:
    """The lines that are printed."""
    folders = sorted({*now, *(before or ())})
    totals = [(now[folder], now[folder] - (before or now)[folder], folder) for folder in folders]
    totals.append((now.total(), now.total() - (before or now).total(), "in all"))
    for count, more, folder in totals:
        yield f"{count:7,}  {folder}" if before is None else f"{count:7,} {more or 0:+7,}  {folder}"


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="default: all of this repository")
    parser.add_argument("--against", metavar="REV", help="a commit, to print what is more or less than in it")
    words = parser.parse_args()
    folders = words.folders or [*PACKAGES, *WHOLE]
    before = None if words.against is None else counted(committed(ROOT, folders, words.against), folders)
    for line in lines(counted(worktree(ROOT, folders), folders), before):
        print(line)


if __name__ == "__main__":
    main()
