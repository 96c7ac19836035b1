"""Names of a package that are imported when they are first used, so that `import offbeat` loads no PyTorch.

The package's stub file (`__init__.pyi`), which type checkers read, is also the list: a name comes from where
the stub imports it. Subpackages in it are attributes too, and not part of `__all__`. `dir()` shows what the
stub has, and not what Python binds besides, such as a private subpackage that something has imported.
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.resources import files
from typing import Any


def exports(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Read a package's stub and give its `__all__`, `__getattr__` and `__dir__` (PEP 562).

    Args:
        package: The package's full name; it is being imported.
    """
    sources = _sources(package, "__init__.pyi")

    def load(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        source = sources[name]
        value: Any = None if source == package else getattr(import_module(source), name, None)
        if value is None:
            # The name is of a module that nothing has imported yet.
            value = import_module(f"{source}.{name}")
        setattr(sys.modules[package], name, value)
        return value

    def shown() -> list[str]:
        about = (name for name in vars(sys.modules[package]) if name.startswith("__"))
        return sorted({*about, *sources})

    names = sorted(name for name, source in sources.items() if source != package)
    return names, load, shown


def listing(module: str, *subpackages: str) -> Callable[[], list[str]]:
    """The `__dir__` of a module that imports its names at once: it shows what is public, as `exports` does.

    Args:
        module: The module's full name.
        *subpackages: What is public besides its `__all__`.
    """

    def shown() -> list[str]:
        names = vars(sys.modules[module])
        return sorted({*(name for name in names if name.startswith("__")), *names["__all__"], *subpackages})

    return shown


def _sources(package: str, stub: str) -> dict[str, str]:
    """The module that each name of a stub comes from; `import *` is that of another stub."""
    sources = dict[str, str]()
    for node in ast.parse((files(package) / stub).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            module = str(node.module)
            for alias in node.names:
                if alias.name == "*":
                    parent, _, name = module.rpartition(".")
                    sources |= _sources(package, f"{parent.removeprefix(package + '.')}/{name}.pyi")
                else:
                    sources[alias.name] = module
    return sources
