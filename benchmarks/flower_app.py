"""What benchmarks of Flower share: a small app of the benchmark's own, and nodes on loopback that run it."""

import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import harness  # noqa: F401  with it, the tests are found

import offbeat as ob
from offbeat.runs.schema import DATABASE
from tests.flower.superlink import LocalFederation

PROJECT = """[project]
name = "benchmark"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "example"
[tool.flwr.app.components]
serverapp = "benchmark.server:app"
clientapp = "benchmark.client:app"
[tool.flwr.app.config]
"""


def write_app(directory: Path, client: str, server: str, config: Mapping[str, str | int]) -> Path:
    """Write an app of these two sources to a directory of its own; `config` has the defaults of its run."""
    defaults = (f'{key} = "{v}"' if isinstance(v, str) else f"{key} = {v}" for key, v in config.items())
    files = {"__init__.py": "", "client.py": client, "server.py": server}
    (directory / "benchmark").mkdir(parents=True)
    (directory / "pyproject.toml").write_text(PROJECT + "\n".join(defaults) + "\n")
    for name, text in files.items():
        (directory / "benchmark" / name).write_text(text)
    return directory


@contextmanager
def federation(home: Path, nodes: int, isolation: str = "process") -> Iterator[LocalFederation]:
    """A SuperLink and its SuperNodes, under one directory; all of them end with the context."""
    made = LocalFederation(home, isolation)
    try:
        made.start_superlink()
        for i in range(nodes):
            made.start_supernode(i, nodes)
        yield made
    finally:
        made.stop()


def has_ended(directory: Path, patience: float) -> bool:
    """Wait at most so many seconds for a run to end, however it does; whether it has."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if (directory / DATABASE).is_file() and ob.read_run(directory).status != "running":
            return True
        time.sleep(1.0)
    return False


def where() -> dict[str, Any]:
    """On what it was measured."""
    return {"flwr": version("flwr"), "python": platform.python_version(), "cores": os.cpu_count()}
