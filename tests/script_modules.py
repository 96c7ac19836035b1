"""Scripts of this repository as modules: those of docs, benchmarks, scripts and examples are no packages."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load_script(path: Path, name: str | None = None) -> ModuleType:
    """Import a script under a name, that of its file by default; it finds the modules beside it."""
    spec = importlib.util.spec_from_file_location(name or path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while it is imported.
    sys.modules[spec.name] = module
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(path.parent), *sys.path])
        spec.loader.exec_module(module)
    return module
