"""New files for secrets that commands make: checked before, and deleted where the secret is not valid."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offbeat.core.errors import UsageError, reason_of
from offbeat.runs.permissions import why_unwritable


@contextmanager
def new_secret(option: str, file: Path | None) -> Iterator[None]:
    """Check that an option's file is new and can be written; delete it again where the context fails.

    Args:
        option: The option.
        file: The file that is written within the context. None means that the token is printed.

    Raises:
        UsageError: The file is there already, or cannot be made in its directory.
    """
    if file is None:
        yield
        return
    if file.exists():
        raise UsageError(f"{option} {file} is there already: delete it, or choose another name")
    if (why := why_unwritable(file.absolute().parent)) is not None:
        raise UsageError(f"{option} {file} cannot be written: {why}")
    try:
        yield
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def write_token(file: Path, token: str) -> None:
    """Write a token as one line, readable by its owner only. Raises `UsageError`."""
    from offbeat.runs.durable_files import write_private

    try:
        write_private(file, f"{token}\n".encode())
    except OSError as error:
        raise UsageError(f"--out {file} cannot be written: {reason_of(error)}") from None
