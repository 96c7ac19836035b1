"""The error for an optional dependency that is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager

from offbeat.core.errors import UsageError
from offbeat.core.installation import install_hint


@contextmanager
def requires_extra(extra: str, why: str = "") -> Iterator[None]:
    """Turn an import that fails within the context into `missing_extra`."""
    try:
        yield
    except ImportError as error:
        raise missing_extra(error.name, extra, why) from None


def missing_extra(package: str | None, extra: str, why: str = "") -> UsageError:
    """The error for a package that comes with one of Offbeat's extras.

    Args:
        package: The package that could not be imported.
        extra: The extra of Offbeat that installs it, such as "net".
        why: What needs the package, with which the line begins.
    """
    return UsageError(f"{why}{package} is not installed: {install_hint(extra)}")
