"""Wrappers: parts around another part of their kind, which they leave as it is and add something to."""

from typing import Any, Protocol, runtime_checkable

from offbeat.core.features import Feature


@runtime_checkable
class Wrapper(Protocol):
    """A schedule around a schedule, or an objective around an objective: a dataclass with a field `inner`."""

    @property
    def inner(self) -> Any:
        """The part inside."""

    @property
    def own_requires(self) -> frozenset[Feature]:
        """What the wrapper requires besides what the part inside does."""

    @property
    def own_provides(self) -> frozenset[Feature]:
        """What the wrapper provides besides what the part inside does."""


def adds(part: Any, feature: Feature) -> bool:
    """Is the part a wrapper because of which this feature is required or provided?"""
    return isinstance(part, Wrapper) and feature in part.own_requires | part.own_provides


def layer(part: Any, feature: Feature) -> Any:
    """The wrapper that adds a feature, of those around a part; None where there is none."""
    while isinstance(part, Wrapper) and not adds(part, feature):
        part = part.inner
    return part if adds(part, feature) else None


def strip(part: Any, *features: Feature) -> Any:
    """A part without its outer wrappers that add one of these features."""
    while any(adds(part, feature) for feature in features):
        part = part.inner
    return part
