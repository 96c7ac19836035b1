"""Where recipes are: the built-in ones by name, and files."""

from importlib.resources import files
from pathlib import Path

from offbeat.core.errors import UsageError
from offbeat.documents import user_path


def built_in() -> dict[str, Path]:
    """Paths of the built-in recipes by name."""
    root = Path(str(files("offbeat.recipes")))
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.yaml"))}


def find_recipe(name: str) -> Path:
    """The file of a recipe, a file or a built-in one. Raises `UsageError` where there is none."""
    from offbeat.core.validation import did_you_mean

    path, known = user_path(name), built_in()
    if path.is_file():
        return path
    if path.is_dir() and name not in known:
        raise UsageError(f"recipe {name} is a directory: give the recipe's file")
    if name not in known:
        raise UsageError(f"recipe {name} is neither a file nor built in{did_you_mean(name, known)}")
    return known[name]
