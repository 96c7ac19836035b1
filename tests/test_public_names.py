"""Public packages are attributes, the documentation uses public names, docs/releases.md lists them."""

import ast
import importlib
import inspect
import json
import pkgutil
import re
import runpy
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import offbeat as ob

ROOT = Path(__file__).parents[1]
PACKAGES = [
    "algorithms", "callbacks", "codec", "data", "flower", "inference", "local", "metrics", "models", "net",
    "parts", "recipes", "report", "runs", "testing", "world",
]  # fmt: skip
NEEDS = {"offbeat.flower": "flwr", "offbeat.net": "grpc", "offbeat.testing.network": "grpc"}
TOP = ("offbeat", "offbeat_papers")
ROW = re.compile(r"^\| `(offbeat[\w.]*)` \| (`.+`) \|$", re.MULTILINE)


@cache
def listed() -> dict[str, list[str]]:
    """The public names by module, as docs/releases.md lists them."""
    page = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## Public names")
    return {module: re.findall(r"`(\w+)`", names) for module, names in ROW.findall(section)}


def public_names(module: str) -> list[str]:
    names: list[str] = importlib.import_module(module).__all__
    return names


# Packages as attributes


def test_public_packages_are_attributes_of_the_package_and_private_ones_do_not_show() -> None:
    shown = {name for name in dir(ob) if not name.startswith("_")}
    parts = {module.name for module in pkgutil.iter_modules(ob.__path__)}
    assert shown & parts == set(PACKAGES)
    assert shown == {*PACKAGES, *(name for name in ob.__all__ if not name.startswith("_"))}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_public_package_is_its_attribute_before_anything_imports_it(name: str) -> None:
    """In this process other tests have imported it; the loader of the lazy names is asked instead."""
    assert isinstance(ob.__getattr__(name), ModuleType)
    assert getattr(ob, name) is importlib.import_module(f"offbeat.{name}")


def test_private_packages_do_not_show_when_something_has_imported_them() -> None:
    importlib.import_module("offbeat.sim.simulate")
    bound = {"core", "sim", "lazy", "vectors", "exports"}
    assert bound <= set(vars(ob)), "Python binds what has been imported"
    assert not bound & set(dir(ob))
    assert dir(ob) == sorted(set(dir(ob)))


@pytest.mark.parametrize("module", ["offbeat", *(f"offbeat.{name}" for name in PACKAGES)])
def test_names_are_listed_once_and_are_there(module: str) -> None:
    pytest.importorskip(NEEDS.get(module, "torch"))
    names = public_names(module)
    assert len(names) == len(set(names))
    shown = dir(importlib.import_module(module))
    assert len(shown) == len(set(shown))
    assert set(names) <= set(shown)
    others = {name for name in shown if not name.startswith("__")} - set(names)
    assert module == "offbeat" or all(f"{module}.{name}" in listed() for name in others), others
    for name in names:
        assert getattr(importlib.import_module(module), name) is not None


def test_flower_without_its_extra_is_an_attribute_whose_names_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("grpc")  # offbeat.client needs the network
    monkeypatch.setitem(sys.modules, "flwr", None)
    package = importlib.reload(importlib.import_module("offbeat.flower"))
    assert dict(inspect.getmembers(ob, inspect.ismodule))["flower"] is package, "help(offbeat) works"
    for name in package.__all__:
        package.__dict__.pop(name, None)
        with pytest.raises(ImportError, match=r"offbeat\.flower: flwr is not installed: pip install"):
            getattr(package, name)
    assert not hasattr(package, "nothing")


# The list in docs/releases.md


def test_the_releases_page_lists_every_public_package() -> None:
    assert {*TOP, *(f"offbeat.{name}" for name in PACKAGES)} <= set(listed())


@pytest.mark.parametrize("module", sorted(listed()))
def test_the_releases_page_lists_the_names_that_a_module_makes_public(module: str) -> None:
    pytest.importorskip(NEEDS.get(module, "torch"))
    names = sorted(public_names(module))
    row = f"| `{module}` | {', '.join(f'`{name}`' for name in names)} |"
    assert listed()[module] == names, f"docs/releases.md wants the row\n{row}"


def test_every_part_of_a_paper_is_public_where_the_reference_shows_it() -> None:
    public = {
        getattr(importlib.import_module(module), name)
        for module in listed()
        if module.startswith("offbeat.algorithms.")
        for name in public_names(module)
    }
    papers = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["papers"]()
    paths = [line.removeprefix("::: ").rpartition(".") for line in papers]
    parts = {name: getattr(importlib.import_module(module), name) for module, _, name in paths}
    inner = {"Pooled", "RootRule", "Rule", "WeighingRule"}  # privacy's schedule, and bases of robust rules
    assert {name for name, part in parts.items() if part not in public} == inner


def test_the_reference_shows_each_name_once() -> None:
    hooks = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference.md"))
    text = hooks["on_page_markdown"]((ROOT / "docs" / "reference.md").read_text(encoding="utf-8"), page)
    values = dict[int, str]()
    for path in re.findall(r"^::: (\S+)$", text, re.MULTILINE):
        module, _, name = path.rpartition(".")
        value = getattr(importlib.import_module(module), name)
        if getattr(value, "__module__", "") != "builtins":  # a name for int may be one of several
            assert values.setdefault(id(value), path) == path
    shown = [path for path in values.values() if path.rpartition(".")[2] in ob.ALGORITHMS]
    assert len(shown) == len(ob.ALGORITHMS)


# Documentation


def snippets() -> Iterator[tuple[str, str]]:
    """The Python of the documentation: of pages, examples and the notebook, by where it stands."""
    pages = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^ *```(?:python|py)\b[^\n]*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
            yield str(page.relative_to(ROOT)), textwrap.dedent(block)
        for file, mark in re.findall(r'^--8<-- "([^":]+\.py)(?::(\w+))?"$', text, re.MULTILINE):
            whole = (ROOT / file).read_text(encoding="utf-8")
            yield file, whole.split(f"[start:{mark}]")[1].split("# --8<-- [end")[0] if mark else whole
    for example in sorted((ROOT / "examples").rglob("*.py")):
        yield str(example.relative_to(ROOT)), example.read_text(encoding="utf-8")
    for notebook in sorted((ROOT / "examples").rglob("*.ipynb")):
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                yield str(notebook.relative_to(ROOT)), "".join(cell["source"])


def used(code: str) -> Iterator[tuple[str, ...]]:
    """The names of Offbeat that Python code uses, each as a path such as ("offbeat", "net", "serve")."""
    aliases = dict[str, tuple[str, ...]]()
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                path = tuple(alias.name.split("."))
                if path[0] in TOP:
                    yield path
                    aliases[alias.asname or path[0]] = path if alias.asname else path[:1]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in TOP:
            for alias in node.names:
                path = (*str(node.module).split("."), alias.name)
                yield path
                aliases[alias.asname or alias.name] = path
    aliases.setdefault("ob", ("offbeat",))  # a block goes on where one above it has imported
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, *rest = ast.unparse(node).split(".")
            if first in aliases and all(name.isidentifier() for name in rest):
                yield (*aliases[first], *rest)


def private_part(path: tuple[str, ...]) -> str | None:
    """The first name of a path that is not public; None where all are, up to what is no module."""
    module = path[0]
    for name in path[1:]:
        if f"{module}.{name}" in listed() or (f"{module}.{name}" in parents()):
            module = f"{module}.{name}"
        elif module in listed() and name in listed()[module]:
            value = getattr(importlib.import_module(module), name)
            if not isinstance(value, ModuleType):
                return None
            module = value.__name__
        else:
            return f"{module}.{name}"
    return None


@cache
def parents() -> frozenset[str]:
    """The packages of public modules, through which their paths lead."""
    return frozenset(name.rpartition(".")[0] for name in listed())


def test_the_python_of_the_documentation_uses_public_names_only() -> None:
    wrong = dict[str, set[str]]()
    for where, code in snippets():
        for path in used(code):
            if (name := private_part(path)) is not None:
                wrong.setdefault(name, set()).add(where)
    assert not wrong, "give them to a public package's __all__, or have the page use others"


@pytest.mark.parametrize(
    "code",
    [
        "from offbeat.core.engine import Engine",
        "from offbeat.net.grpc.server import listen",
        "import offbeat.sim.event_loop",
        "import offbeat as o\no.core",
        "ob.fedbufff(3)",
        "from offbeat import parts as q\nq.Nothing()",
        "from offbeat_papers.rows import Results",
    ],
)
def test_the_check_would_notice(code: str) -> None:
    assert [path for path in used(code) if private_part(path) is not None]


def test_the_check_knows_what_is_public() -> None:
    code = (
        "import offbeat as ob\nfrom offbeat import parts as p\nfrom offbeat.net import listen\n"
        "import offbeat.testing.strategies\nob.laws.Uniform(0, 1)\nob.simulate().summary.versions\np.flat\n"
        "ob.Layout.flat(2)\nob.robust.Median()"
    )
    assert [private_part(path) for path in used(code)] == [None] * len(list(used(code)))
