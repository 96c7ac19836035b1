"""Wrappers: parts that add features to another part of their kind."""

from typing import Any, ClassVar

from offbeat.core.features import NONE, Feature


class Wrapper:
    """Common base of schedules around a schedule, and likewise of objectives and aggregators.

    A wrapper is a dataclass with the part inside in its field `inner`; `replace(wrapper, inner=…)` puts it
    around another one. `own_requires` and `own_provides` are what it adds to those of the part inside.
    """

    inner: Any
    own_requires: ClassVar[frozenset[Feature]] = NONE
    own_provides: ClassVar[frozenset[Feature]] = NONE

    @property
    def requires(self) -> frozenset[Feature]:
        """Own required features, and those of the part inside."""
        return self.own_requires | frozenset(self.inner.requires)

    @property
    def provides(self) -> frozenset[Feature]:
        """Own provided features, and those of the part inside."""
        return self.own_provides | frozenset(self.inner.provides)


def adds(part: Any, *features: Feature) -> bool:
    """Whether a part is a wrapper that itself requires or provides one of these features."""
    return isinstance(part, Wrapper) and not (part.own_requires | part.own_provides).isdisjoint(features)


def layer(part: Any, feature: Feature) -> Any:
    """The wrapper that adds a feature, of those around a part; None where no wrapper adds it."""
    while isinstance(part, Wrapper) and not adds(part, feature):
        part = part.inner
    return part if adds(part, feature) else None


def strip(part: Any, *features: Feature) -> Any:
    """A part without its outer wrappers that add one of these features."""
    while adds(part, *features):
        part = part.inner
    return part
