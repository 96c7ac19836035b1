"""Lines of code of the package: without blank lines, comments and docstrings.

    python scripts/count_lines.py [FOLDER]

Prints a line for each folder of the package and the sum. Generated modules (`*_pb2.py`) are not counted.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str) -> int:
    """The number of lines of `text` that hold code."""
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(text)))


def docstring_lines(tree: ast.Module) -> set[int]:
    """The lines of docstrings, and of the strings that document a module's names."""
    found = set[int]()
    for node in ast.walk(tree):
        for statement in node.body if isinstance(node, DOCUMENTED) else ():
            match statement:
                case ast.Expr(ast.Constant(str())):
                    found.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return found


def main() -> None:
    """Count and print."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "src/offbeat")
    counts = Counter[str]()
    for path in sorted(root.rglob("*.py")):
        if not path.stem.endswith("_pb2"):
            relative = path.relative_to(root)
            counts[str(relative.parent)] += code_lines(path.read_text(encoding="utf-8"))
    for folder, count in sorted(counts.items()):
        print(f"{count:7,}  {folder}")
    print(f"{sum(counts.values()):7,}  in all")


if __name__ == "__main__":
    main()
