"""The version to which a rollback goes, and where its content is."""

from collections.abc import Callable
from typing import NamedTuple

from offbeat.core.events import Version
from offbeat.core.model import Model


class GoodVersion(NamedTuple):
    """A version to which a run can go back.

    Attributes:
        version: Its number.
        load: Gives its content, from memory or from a file; raises `DamageError` where the file is damaged.
    """

    version: Version
    load: Callable[[], Model]

    @classmethod
    def in_memory(cls, version: Version, model: Model) -> "GoodVersion":
        """A version whose content is held."""
        return cls(version, lambda: model)
