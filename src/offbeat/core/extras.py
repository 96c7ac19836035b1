"""What to say when an optional dependency is not installed."""

from offbeat.core.errors import UsageError


def missing_extra(package: str | None, extra: str, why: str = "") -> UsageError:
    """The error for a package that comes with one of Offbeat's extras.

    Args:
        package: The package that could not be imported.
        extra: The extra of Offbeat that installs it, such as "net".
        why: What needs the package, with which the line begins.
    """
    return UsageError(
        f'{why}{package} is not installed: pip install "offbeat[{extra}]", or in a checkout '
        f'pip install -e ".[{extra}]"'
    )
