"""Make the folder of a new project from a template."""

import random
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from string import Template

from offbeat.core.errors import UsageError, reason_of

TEMPLATES = {"offbeat": ("template",), "flower": ("flower",), "flower-app": ("flower", "flower_app")}
"""What a project can be made from, and the folders of its files here; a later folder replaces files."""
TABLES = {"north": 240, "east": 120, "south": 60, "test": 200}
"""Rows of the made-up tables."""


def create_project(folder: Path, source: str = "offbeat") -> list[Path]:
    """Write the files of a new project.

    Args:
        folder: The project's folder; it is made, and must not hold anything.
        source: Whose training code the project holds: "offbeat" is a PyTorch module and its data, "flower" a
            Flower `NumPyClient`, "flower-app" a Flower `ClientApp`.

    Returns:
        The files, relative to the folder.

    Raises:
        UsageError: The source is unknown, or the folder cannot be used.
    """
    if source not in TEMPLATES:
        raise UsageError(f"--from {source} is unknown: choose {' or '.join(TEMPLATES)}")
    texts = dict(_tables())
    for template in TEMPLATES[source]:
        texts |= _texts(folder.resolve().name, template)
    try:
        _check_new(folder)
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if path.suffix == ".sh":
                path.chmod(0o755)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {reason_of(error)}; give another folder") from None
    return [Path(name) for name in texts]


def _check_new(folder: Path) -> None:
    """Check that a folder is missing or empty. Raises `UsageError`, or `OSError` where it cannot be seen."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: give the name of a new folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty: give the name of a new folder, or empty this one")


def _texts(name: str, template: str) -> Iterator[tuple[str, str]]:
    """The files of a template; they end with .txt here, so that they are not code of this package."""
    for file in sorted((files("offbeat.project") / template).iterdir(), key=lambda file: file.name):
        text = file.read_text(encoding="utf-8")
        yield file.name.removesuffix(".txt"), Template(text).safe_substitute(PROJECT=name)


def _tables() -> Iterator[tuple[str, str]]:
    """Made-up patients of three sites: whoever is old and has a high value of the marker is often ill."""
    rng = random.Random(0)
    for site, count in TABLES.items():
        rows = ["age,pressure,marker,ill"]
        for _ in range(count):
            age, pressure, marker = rng.gauss(0, 1), rng.gauss(0, 1), rng.gauss(0, 1)
            ill = int(age + marker + rng.gauss(0, 0.4) > 0)
            rows.append(f"{age:.3f},{pressure:.3f},{marker:.3f},{ill}")
        yield f"data/{site}.csv", "\n".join(rows) + "\n"
