"""Paths of raw dataset files, and the error for missing ones."""

import os
from collections.abc import Sequence
from pathlib import Path

from offbeat.core.errors import UsageError
from offbeat.documents import user_path

ENVIRONMENT_VARIABLE = "OFFBEAT_DATA"


def data_root(root: Path | None = None) -> Path:
    """The data directory: `root`, else the environment's OFFBEAT_DATA, else ~/.cache/offbeat."""
    if root is not None:
        return user_path(root)
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    return user_path(named) if named else Path.home() / ".cache" / "offbeat"


def find_files(dataset: str, folder: Path, names: Sequence[str], *, gz: bool) -> list[Path]:
    """Find each of `names` in `folder`, in order; with `gz`, `name.gz` is accepted where `name` is missing.

    Raises `UsageError` naming the files that are missing, the folder, and how to move it.
    """
    paths = {name: _find(folder, name, gz=gz) for name in names}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        plural = f"{len(missing)} files" if len(missing) > 1 else "file"
        raise missing_dataset(
            dataset, folder, f"the {plural} {', '.join(missing)}", " (plain or with .gz)" if gz else ""
        )
    return [path for path in paths.values() if path is not None]


def missing_dataset(
    dataset: str, folder: Path, what: str, how: str = "", *, source: str | None = None
) -> UsageError:
    """The error for a dataset whose files are not in the data directory.

    Args:
        dataset: Name of the dataset.
        folder: Where its files belong.
        what: The files that are missing.
        how: What else is allowed, for messages.
        source: Where the files come from. None means that `fetch` gets them.
    """
    get = f"get it from {source}"
    if source is None:
        get = f"call offbeat.data.download.fetch({dataset!r}) where the network allows"
    return UsageError(
        f"dataset {dataset!r} is not in {folder}: put {what} there{how}, or set {ENVIRONMENT_VARIABLE} to "
        f"the directory that holds {dataset}/, or {get}"
    )


def _find(folder: Path, name: str, *, gz: bool) -> Path | None:
    for candidate in (name, f"{name}.gz") if gz else (name,):
        if (folder / candidate).is_file():
            return folder / candidate
    return None
