"""Who may import whom, read from the source: dependencies point one way, and the core does no IO.

cli → testing, recipes, report, sim, net → runs →
algorithms, local, world, codec, metrics, data, models → core
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import offbeat
import offbeat_papers
from offbeat import parts
from tests.forks import Fork

ROOT = Path(offbeat.__file__).parent
PAPERS = Path(offbeat_papers.__file__).parent
pytestmark = pytest.mark.xdist_group("imports")  # every module is parsed once

# What each part of the package may import of the package, besides itself. The order is the direction:
# a part may only use parts above it in this table.
MAY_USE: dict[str, set[str]] = {
    "lazy": set(),
    "version": set(),
    "signals": set(),
    "cores": set(),
    "unpacking": set(),
    "vectors": {"cores"},
    "core": set(),
    "units": set(),
    "verdicts": set(),
    "documents": {"core"},
    "named": {"core"},
    "allowed": {"core", "named"},
    "models": {"lazy", "allowed", "core", "documents", "named"},
    "data": {"lazy", "core", "documents", "named", "unpacking"},
    "codec": {"lazy", "core"},
    "metrics": {"lazy", "core"},
    "local": {"lazy", "core", "data", "metrics", "models", "named", "vectors"},
    "world": {"lazy", "core", "data", "documents", "named"},
    "algorithms": {"lazy", "core", "local", "codec", "named", "vectors"},
    "parts": {"core", "local", "algorithms", "vectors"},
    "runs": {"lazy", "core", "documents", "unpacking", "version"},
    "experiment": {"core", "codec", "runs", "algorithms", "version"},
    "secure": {"core", "runs"},
    "callbacks": {"allowed", "documents", "lazy", "core", "named", "runs", "version"},
    "sim": {
        "callbacks", "core", "documents", "experiment", "runs", "secure", "world", "algorithms", "local",
        "data", "metrics", "signals", "vectors", "version",
    },
    "net": {
        "allowed", "callbacks", "documents", "lazy", "core", "experiment", "models", "runs", "algorithms",
        "local", "codec", "data", "metrics", "named", "secure", "units", "vectors",
        "version",
    },
    "backup": {"core", "documents", "net", "runs", "version"},
    "flower": {"lazy", "allowed", "core", "data", "documents", "experiment", "local", "net", "runs"},
    "report": {"lazy", "core", "documents", "runs", "units", "verdicts", "version"},
    "recipes": {
        "lazy", "allowed", "callbacks", "core", "experiment", "models", "data", "codec", "local", "metrics",
        "named",
        "world", "algorithms", "documents", "runs", "signals", "sim", "report", "version",
    },
    "notebook": {"core", "report", "runs", "units"},
    "inference": {"lazy", "allowed", "core", "documents", "local", "models", "runs", "version"},
    "testing": {"lazy", "core", "world", "sim", "net"},
    "project": {"core"},
}  # fmt: skip
DEFERRED = {"runs": {"notebook"}}  # by name, when a method is called: what a run shows is made above it
PAPERS_MAY_USE = {
    "allowed", "cli", "core", "documents", "lazy", "metrics", "recipes", "report", "runs", "verdicts",
    "units", "version",
}  # fmt: skip
TOP = {"__init__", "__main__", "cli"}  # the public face and the command line: may use everything

IO = {"time", "datetime", "threading", "asyncio", "socket", "random", "multiprocessing", "os", "sqlite3",
      "subprocess", "signal", "queue", "concurrent", "select", "uuid", "pathlib", "io"}  # fmt: skip
GLOBAL_RNG = {"manual_seed", "seed", "rand", "randn", "randint", "randperm", "rand_like", "randn_like",
              "random_sample", "shuffle", "permutation", "choice", "normal", "uniform", "bernoulli",
              "multinomial", "default_rng"}  # fmt: skip
RANDOM_MODULES = ("numpy.random", "torch.random", "torch.multiprocessing", "torch.distributed")
BUILTIN_IO = {"open", "input", "print", "__import__", "exec", "eval"}


@cache
def sources(root: Path = ROOT) -> dict[Path, ast.Module]:
    """Every module of a package, parsed once."""
    paths = sorted(root.rglob("*.py"))
    return {path.relative_to(root): ast.parse(path.read_text(encoding="utf-8"), path.name) for path in paths}


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Everything in a file, walked once."""
    return tuple(ast.walk(tree))


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module a file imports, anywhere in it; `from a import b` as "a.b" too."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where a name comes from"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def deferred(tree: ast.AST) -> set[str]:
    """The parts of the package that a file imports by a name in a string."""
    texts = (node.value for node in nodes(tree) if isinstance(node, ast.Constant))
    names = (text.split(".") for text in texts if isinstance(text, str))
    return {name[1] for name in names if name[0] == "offbeat" and len(name) > 1 and name[1] in MAY_USE}


def part_of(path: Path) -> str:
    return path.parts[0] if len(path.parts) > 1 else path.stem


def ours(tree: ast.AST) -> set[str]:
    """The parts of the package that a file imports; the bare package is "__init__"."""
    found = set()
    for name in (name.split(".") for name in imported(tree)):
        if name[0] == "offbeat":
            known = len(name) > 1 and (name[1] in MAY_USE or name[1] in TOP)
            found.add(name[1] if known else "__init__")
    return found


def side_effects(tree: ast.AST) -> Iterator[str]:
    """What a file does that has a clock, a thread, a file or a random generator of its own in it."""
    for name in imported(tree):
        owner, _, last = name.rpartition(".")
        if name.split(".")[0] in IO or name.startswith(RANDOM_MODULES):
            yield f"imports {name}"
        if owner in ("torch", "numpy") and last in GLOBAL_RNG:
            yield f"imports {name}"
    for node in nodes(tree):
        if isinstance(node, ast.Name) and node.id in BUILTIN_IO:
            yield f"line {node.lineno}: {node.id}"
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value)
        global_numpy = owner in ("np.random", "numpy.random") and node.attr not in {"Generator", "Philox"}
        global_torch = owner in ("torch", "torch.random", "torch.cuda") and node.attr in GLOBAL_RNG
        if global_numpy or global_torch:
            yield f"line {node.lineno}: {owner}.{node.attr}"


def test_the_table_points_one_way_and_has_every_part_of_the_package():
    above: set[str] = set()
    for part, uses in MAY_USE.items():
        assert uses <= above, part
        above.add(part)
    assert set(MAY_USE) <= {part_of(path) for path in sources()} <= set(MAY_USE) | TOP


def test_dependencies_point_one_way():
    wrong = {
        str(path): beyond
        for path, tree in sources().items()
        if (part := part_of(path)) not in TOP and (beyond := ours(tree) - {part} - MAY_USE[part])
    }
    assert not wrong


def test_imports_by_a_name_in_a_string_are_listed():
    found: dict[str, set[str]] = {}
    for path, tree in sources().items():
        if part_of(path) not in TOP and (names := deferred(tree) - {part_of(path)}):
            found.setdefault(part_of(path), set()).update(names)
    assert found == DEFERRED


def test_the_core_and_the_algorithms_have_no_clock_no_thread_no_file_and_no_global_rng():
    pure = {path: tree for path, tree in sources().items() if part_of(path) in ("core", "algorithms")}
    assert len(pure) > 40
    wrong = {str(path): found for path, tree in pure.items() if (found := list(side_effects(tree)))}
    assert not wrong


def module_of(path: Path) -> str:
    return ".".join(("offbeat", *path.with_suffix("").parts)).removesuffix(".__init__")


def circles(arrows: dict[str, set[str]]) -> list[set[str]]:
    """The groups of modules that import each other, directly or through others."""
    reached: dict[str, set[str]] = {}
    for start in arrows:
        found, left = set[str](), [start]
        while left:
            new = arrows[left.pop()] - found
            found |= new
            left += new
        reached[start] = found
    groups = {
        frozenset(other for other in found if module in reached[other])
        for module, found in reached.items()
        if module in found
    }
    return [set(group) for group in groups]


def test_no_modules_of_a_deployed_run_import_each_other_in_a_circle():
    """Imports for type checkers only, and those within functions, count too."""
    trees = {module_of(path): tree for path, tree in sources().items() if part_of(path) in ("net", "secure")}
    arrows = {module: {name for name in trees if name in importing(tree)} for module, tree in trees.items()}
    assert circles(arrows) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [{"b", "c"}]


def importing(tree: ast.AST) -> set[str]:
    """The modules that a file imports from, and those that it imports."""
    names = set(imported(tree))
    return names | {name.rpartition(".")[0] for name in names}


def test_only_the_adapter_imports_flower():
    wrong = [
        str(path)
        for path, tree in sources().items()
        if part_of(path) != "flower" and any(name.split(".")[0] == "flwr" for name in imported(tree))
    ]
    assert not wrong


def test_the_papers_use_what_is_below_them_and_the_package_does_not_know_them():
    wrong = {
        str(path): beyond
        for path, tree in sources(PAPERS).items()
        if (beyond := ours(tree) - PAPERS_MAY_USE - {"__init__"})
    }
    assert not wrong
    knowing = [
        str(path)
        for path, tree in sources().items()
        if any(name.split(".")[0] == "offbeat_papers" for name in imported(tree))
    ]
    assert not knowing


def test_the_checks_would_notice():
    tree = ast.parse("def f():\n    import time\n    from offbeat.sim.result import Run\n    import offbeat")
    assert set(imported(tree)) == {"time", "offbeat.sim.result.Run", "offbeat"}
    assert ours(tree) == {"sim", "__init__"}
    assert ours(ast.parse("from offbeat import simulate")) == {"__init__"}
    assert ours(ast.parse("from offbeat.version import __version__")) == {"version"}
    assert ours(ast.parse("from offbeat import core")) == {"core"}
    for line in (
        "import time", "from os import path", "import numpy.random", "from torch import randn",
        "from numpy import random_sample", "print()", "open('f')", "np.random.rand()", "torch.randn(3)",
        "torch.cuda.manual_seed(1)",
    ):  # fmt: skip
        assert list(side_effects(ast.parse(line))), line
    assert not list(side_effects(ast.parse("np.random.Generator(np.random.Philox(1))\ntorch.zeros(3)")))


def test_everything_public_is_there_and_sorted():
    assert offbeat.__all__ == sorted(offbeat.__all__)
    assert len(set(parts.__all__)) == len(parts.__all__)
    assert {"simulate", "fedbuff", "__version__"} <= set(offbeat.__all__) <= set(dir(offbeat))
    for name in offbeat.__all__:
        assert getattr(offbeat, name) is not None
    with pytest.raises(AttributeError, match="module 'offbeat' has no attribute 'simulat'"):
        _ = offbeat.simulat


def test_a_subpackage_is_an_attribute_and_not_among_the_public_names():
    assert offbeat.world.__name__ == "offbeat.world"
    assert "world" not in offbeat.__all__
    assert "world" in dir(offbeat)


def test_no_class_name_means_two_things():
    """A reader who searches for a name finds one class."""
    where: dict[str, list[str]] = {}
    for path, tree in (*sources().items(), *sources(PAPERS).items()):
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(str(path))
    assert not {name: paths for name, paths in where.items() if len(paths) > 1}


def test_importing_the_package_loads_no_pytorch():
    code = (
        "import offbeat, offbeat.net, sys; print({'torch', 'numpy', 'pydantic', 'asyncio'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_every_module_says_what_it_is():
    trees = [*sources().items(), *sources(PAPERS).items()]
    assert not [str(path) for path, tree in trees if tree.body and not ast.get_docstring(tree)]


@pytest.mark.parametrize("name", ["laws", "world", "fedbuff", "simulate"])
def test_a_public_name_can_be_the_first_that_is_used(name: str, tmp_path: Path):
    script = tmp_path / "first.py"
    script.write_text(f"import offbeat; offbeat.{name}")
    first = Fork(script, fresh=True)
    _, errors = first.communicate()
    assert first.returncode == 0, errors
