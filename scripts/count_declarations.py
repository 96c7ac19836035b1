"""Where the package declares what a run is: signatures and classes that have a run's seed beside what is run.

    python scripts/count_declarations.py [FOLDER ...]

A declaration is a function's signature, or a class, that has a parameter or field `seed` and one that says what is
run (`RUN`). A value that travels whole, such as an Experiment or a Recipe, has both inside. Listed apart is what
declares nothing (`APART`, each with the reason).
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RUN = frozenset({"algorithm", "recipe", "spec"})
APART = {
    "cli/": "options that a person types",
    "testing/": "checks of an algorithm by itself",
    "callbacks/callback.py": "what a callback is told",
    "net/run_spec.py: RunSpec": "what a site is told",
    "runs/record.py": "what a directory says",
    "runs/columns.py": "what a directory says",
    "report/": "what a page shows",
    "digest": "text of a run's identity",
}


class Declaration(NamedTuple):
    """A signature or class that declares what a run is."""

    file: str
    name: str
    parts: tuple[str, ...]

    def __str__(self) -> str:
        """File and name."""
        return f"{self.file}: {self.name}"


def declarations(folder: Path) -> Iterator[Declaration]:
    """The declarations in the Python files of a folder."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = set(_names(node))
            if "seed" in names and (parts := names & RUN):
                yield Declaration(str(path), node.name, tuple(sorted(parts)))  # type: ignore[attr-defined]


def _names(node: ast.AST) -> Iterator[str]:
    """Parameters of a function, fields of a class and of what it builds in its constructor."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
        yield from (each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
    if isinstance(node, ast.ClassDef):
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                yield each.target.id
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                yield from (a.arg for a in (*each.args.args, *each.args.kwonlyargs))


def main() -> None:
    """Print the declarations and their number."""
    folders = sys.argv[1:] or ["src/offbeat"]
    found = [each for folder in folders for each in declarations(Path(folder))]
    reasons = {each: next((why for part, why in APART.items() if part in str(each)), None) for each in found}
    declared = [each for each in found if reasons[each] is None]
    for each in declared:
        print(f"{each} (seed, {', '.join(each.parts)})")
    print(f"{len(declared)} declare what a run is; apart from these:")
    for each, why in reasons.items():
        if why is not None:
            print(f"  {each}: {why}")


if __name__ == "__main__":
    main()
