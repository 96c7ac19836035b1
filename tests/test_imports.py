"""Who may import whom, read from the source: dependencies point one way, and the core does no IO.

cli → recipes, report, sim, net → runs → algorithms, local, world, codec, data, models → core
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import offbeat
from offbeat import parts

ROOT = Path(offbeat.__file__).parent

# What each part of the package may import of the package, besides itself. The order is the direction:
# a part may only use parts above it in this table.
MAY_USE: dict[str, set[str]] = {
    "lazy": set(),
    "version": set(),
    "vectors": set(),
    "core": set(),
    "models": {"core"},
    "data": {"core"},
    "codec": {"core"},
    "local": {"core", "data", "vectors"},
    "world": {"core", "data"},
    "algorithms": {"core", "local", "codec", "vectors"},
    "parts": {"core", "local", "algorithms", "vectors"},
    "runs": {"core", "version"},
    "sim": {"core", "runs", "world", "algorithms", "local", "data", "vectors", "version"},
    "net": {"lazy", "core", "models", "runs", "algorithms", "local", "codec", "data", "vectors", "version"},
    "flower": {"core", "models", "local", "data", "net"},
    "report": {"lazy", "core", "runs", "version"},
    "recipes": {
        "core",
        "models",
        "data",
        "codec",
        "local",
        "world",
        "algorithms",
        "runs",
        "sim",
        "report",
        "version",
    },
}
TOP = {
    "__init__",
    "__main__",
    "cli",
}  # the public face and the command line: may use everything

IO = {"time", "datetime", "threading", "asyncio", "socket", "random", "multiprocessing", "os", "sqlite3",
      "subprocess", "signal", "queue", "concurrent", "select", "uuid", "pathlib", "io"}  # fmt: skip
GLOBAL_CHANCE = {"manual_seed", "seed", "rand", "randn", "randint", "randperm", "rand_like", "randn_like",
                 "random_sample", "shuffle", "permutation", "choice", "normal", "uniform", "bernoulli",
                 "multinomial", "default_rng"}  # fmt: skip


def files(part: str = "") -> list[Path]:
    return sorted((ROOT / part).rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module a file imports, anywhere in it; `from a import b` as "a.b" too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where a name comes from"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def ours(tree: ast.AST) -> set[str]:
    """The parts of the package that a file imports; the bare package is "__init__"."""
    names = [name.split(".") for name in imported(tree)]
    found = set()
    for name in names:
        if name[0] == "offbeat":
            known = len(name) > 1 and (name[1] in MAY_USE or name[1] in TOP)
            found.add(name[1] if known else "__init__")
    return found


def test_the_table_itself_points_one_way():
    above: set[str] = set()
    for part, uses in MAY_USE.items():
        assert uses <= above, part
        above.add(part)


def test_every_part_of_the_package_is_in_the_table():
    there = {part_of(path) for path in files()}
    assert there <= set(MAY_USE) | TOP


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_dependencies_point_one_way(path):
    part = part_of(path)
    if part in TOP:
        return
    assert ours(parsed(path)) - {part} <= MAY_USE[part]


@pytest.mark.parametrize("path", files("core") + files("algorithms"), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_and_the_algorithms_have_no_clock_no_thread_no_file_and_no_chance_of_their_own(path):
    tree = parsed(path)
    assert not {name.split(".")[0] for name in imported(tree)} & IO
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            assert node.id not in {"open", "input", "print", "__import__", "exec", "eval"}, node.lineno
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value)
        if owner in ("np.random", "numpy.random"):
            assert node.attr in {"Generator", "Philox"}, f"{owner}.{node.attr} in line {node.lineno}"
        if owner in ("torch", "torch.random", "torch.cuda"):
            assert node.attr not in GLOBAL_CHANCE, f"{owner}.{node.attr} in line {node.lineno}"
    for name in imported(tree):
        assert not name.startswith(
            ("numpy.random", "torch.random", "torch.multiprocessing", "torch.distributed")
        )
        assert name not in {f"{owner}.{chance}" for owner in ("torch", "numpy") for chance in GLOBAL_CHANCE}


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_adapter_knows_flower(path):
    if part_of(path) != "flower":
        assert not {name for name in imported(parsed(path)) if name.split(".")[0] == "flwr"}


def test_the_check_would_notice():
    tree = ast.parse("def f():\n    import time\n    from offbeat.sim.result import Run\n    import offbeat")
    assert set(imported(tree)) == {"time", "offbeat.sim.result.Run", "offbeat"}
    assert ours(tree) == {"sim", "__init__"}
    assert ours(ast.parse("from offbeat import simulate")) == {"__init__"}
    assert ours(ast.parse("from offbeat.version import __version__")) == {"version"}
    assert ours(ast.parse("from offbeat import core")) == {"core"}


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
    for path in files():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in where.items() if len(paths) > 1}


def test_importing_the_package_loads_no_pytorch():
    code = (
        "import offbeat, offbeat.net, sys; print({'torch', 'numpy', 'pydantic', 'asyncio'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is(path):
    if path.read_text(encoding="utf-8").strip():
        assert ast.get_docstring(parsed(path))
