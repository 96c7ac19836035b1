"""Names that a shell completes: those that are built in, without importing what they name."""

from offbeat.cli.catalogue import catalogue


def algorithm_names(incomplete: str) -> list[str]:
    """The algorithms that begin so."""
    return [name for name in catalogue().algorithms if name.startswith(incomplete)]


def recipe_names(incomplete: str) -> list[str]:
    """The built-in recipes that begin so."""
    return [name for name in catalogue().recipes if name.startswith(incomplete)]
