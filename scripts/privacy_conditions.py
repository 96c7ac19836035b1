"""Conditions of the package on whether a run has privacy.

    python scripts/privacy_conditions.py [FOLDER] [--each]

Lists over the syntax tree each condition on something that is named for a release, releases, a helper,
helpers, secure or waiting: whether it is None, whether it is true, an `isinstance`, or another comparison.
Prints how many each file has, and the sum; with `--each` also where each is. Where privacy is a layer the
rest of the package has a value that does nothing (`EachUpdate`, `NoHelpers`), and asks for it nowhere.

A condition is the test of an `if`, `while`, conditional expression, assertion or comprehension, a guard or
the subject of a `match`, an operand of `and`, `or` and `not`, a comparison with None, or an `isinstance`,
wherever it stands. `and`, `or` and `not` are taken apart, so each of their operands counts by itself. A name
counts also where it is a part of a longer one, such as `release_plan`, and where a variable or an attribute
of `self` has been given its value, or the outcome of a condition on it.
"""

import argparse
import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

WORDS = frozenset({"release", "releases", "helper", "helpers", "secure", "waiting"})


@dataclass(frozen=True, order=True)
class Condition:
    """A condition: where it stands, which kind it is of, and its text."""

    line: int
    column: int
    kind: str
    text: str


def conditions(source: str) -> list[Condition]:
    """The conditions of a module on a run's privacy, in the order of its text."""
    tree = ast.parse(source)
    attributes = _given(ast.walk(tree), ast.Attribute)
    found = set[Condition]()
    for scope in _scopes(tree):
        names = attributes | _given(scope, ast.Name, attributes)
        for test in {leaf for node in scope for tested in _tested(node) for leaf in _leaves(tested)}:
            if any(_is_meant(node, names) for node in ast.walk(test)):
                found.add(Condition(test.lineno, test.col_offset, _kind(test), ast.unparse(test)))
    return sorted(found)


def _scopes(tree: ast.Module) -> Iterator[list[ast.AST]]:
    """The nodes of each function, and of the module around them."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for scope in [tree, *(node for node in ast.walk(tree) if isinstance(node, functions))]:
        yield [*_inside(scope)]


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """What is in a scope and not in a function within it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _inside(child)


def _given(
    nodes: Iterable[ast.AST], kind: type[ast.Name | ast.Attribute], names: frozenset[str] = frozenset()
) -> frozenset[str]:
    """The names, or attributes of `self`, that are given something meant, or the outcome of a test of it."""
    pairs = [pair for node in nodes for pair in _assigned(node)]
    while True:
        more = {_name(target) for target, value in pairs if isinstance(target, kind) and _tells(value, names)}
        if more <= names:
            return names
        names |= more


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment with the value that it is given."""
    match node:
        case ast.Assign():
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from zip(target.elts, node.value.elts, strict=False)
                else:
                    yield target, node.value
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target, value):
            yield target, value


def _name(target: ast.expr) -> str:
    match target:
        case ast.Name():
            return target.id
        case ast.Attribute(value=ast.Name(id="self")):
            return f"self.{target.attr}"
    return ""


def _tells(value: ast.expr, names: frozenset[str]) -> bool:
    """Whether a value is something meant, or says something of it: `plan` of `plan = run.release_plan` is."""
    if isinstance(value, ast.Name | ast.Attribute):
        return _is_meant(value, names)
    tests = [leaf for tested in _tested(value) for leaf in _leaves(tested)]
    return any(_is_meant(node, names) for test in tests for node in ast.walk(test))


def _tested(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that a node tests."""
    match node:
        case ast.If() | ast.While() | ast.IfExp() | ast.Assert():
            yield node.test
        case ast.comprehension():
            yield from node.ifs
        case ast.match_case(guard=ast.expr() as guard):
            yield guard
        case ast.Match():
            yield node.subject
        case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            yield node
        case ast.Compare() if _is_none_test(node):
            yield node
        case ast.Call(func=ast.Name(id="isinstance" | "bool")):
            yield node


def _leaves(test: ast.expr) -> Iterator[ast.expr]:
    """The operands of a test."""
    match test:
        case ast.BoolOp():
            for value in test.values:
                yield from _leaves(value)
        case ast.UnaryOp(op=ast.Not()):
            yield from _leaves(test.operand)
        case ast.NamedExpr():
            yield from _leaves(test.value)
        case ast.Call(func=ast.Name(id="bool"), args=[argument]):
            yield from _leaves(argument)
        case _:
            yield test


def _is_meant(node: ast.AST, names: frozenset[str]) -> bool:
    """Whether a node is a name of privacy, or one that has been given the value of one."""
    match node:
        case ast.Name():
            return node.id in names or _has_word(node.id)
        case ast.Attribute():
            return _name(node) in names or _has_word(node.attr)
    return False


def _has_word(name: str) -> bool:
    return not WORDS.isdisjoint(name.lower().split("_"))


def _is_none_test(node: ast.Compare) -> bool:
    operands = (node.left, *node.comparators)
    return any(isinstance(operand, ast.Constant) and operand.value is None for operand in operands)


def _kind(test: ast.expr) -> str:
    match test:
        case ast.Compare():
            return "None" if _is_none_test(test) else "comparison"
        case ast.Call(func=ast.Name(id="isinstance")):
            return "isinstance"
    return "truth"


def of_folder(root: Path) -> dict[str, list[Condition]]:
    """The conditions of each module of a folder that has any, by the module's path."""
    found = {
        str(path.relative_to(root)): conditions(path.read_text(encoding="utf-8"))
        for path in sorted(root.rglob("*.py"))
        if not path.stem.endswith("_pb2")
    }
    return {path: listed for path, listed in found.items() if listed}


def main() -> None:
    """List and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("src/offbeat"))
    parser.add_argument("--each", action="store_true", help="print where each condition is")
    given = parser.parse_args()
    kinds = Counter[str]()
    for path, listed in of_folder(given.folder).items():
        print(f"{len(listed):5}  {path}")
        kinds.update(condition.kind for condition in listed)
        for condition in listed if given.each else ():
            print(f"         line {condition.line}, {condition.kind}: {condition.text}")
    print(
        f"{kinds.total():5}  in all: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    )


if __name__ == "__main__":
    main()
