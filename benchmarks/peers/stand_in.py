"""A stand-in for packages that a peer imports at its top and that the measured part never uses.

A torchvision built for CUDA does not load beside a PyTorch built for the CPU. The stand-in is used only
where the real package cannot be imported.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Nothing(type):
    """A class that does nothing, and in which every name is another one."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {})


class _Anything(ModuleType):
    """A module in which every name is a class that does nothing."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {})


class _Finder(MetaPathFinder, Loader):
    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Every module of the package is found here."""
        if name.partition(".")[0] != self._package:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty one."""
        return _Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


def stand_in(*packages: str) -> None:
    """Where one of these cannot be imported, put an empty package in its place."""
    for package in packages:
        try:
            importlib.import_module(package)
        except (ImportError, RuntimeError, OSError):
            for name in [n for n in sys.modules if n.partition(".")[0] == package]:
                del sys.modules[name]
            sys.meta_path.insert(0, _Finder(package))
