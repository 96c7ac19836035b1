"""A partition that a file has: the indices of each client's samples, as other programs divide a dataset."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from pydantic import Field

from offbeat.core.errors import UsageError, reason_of
from offbeat.core.types import Indices
from offbeat.core.validation import checked_dataclass
from offbeat.data.parts import check_parts
from offbeat.documents import read_text

_MOST = 2**28  # bytes
# A larger number is no index, and NumPy's integers have no place for it.
_Index = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


@checked_dataclass
class FromFile:
    """Partition from a JSON file: a list that has one list of sample indices for each client.

    Indices count the samples of the train set from 0, as its loader gives them. A sample belongs to one
    client at most, and not all need to be used.

    Attributes:
        path: The file. In a recipe, its path is relative to the recipe's folder.
    """

    path: Annotated[str, Field(min_length=1, description="JSON file: a list of indices for each client")]
    kind: Literal["file"] = "file"

    def split(
        self, labels: Indices, clients: int, rng: np.random.Generator, groups: Indices | None = None
    ) -> list[Indices]:
        """See `offbeat.world.partitions`. Raises `UsageError` for a file that has no such partition."""
        lists = self._read()
        if len(lists) != clients:
            raise UsageError(
                f"clients = {clients} is not allowed: the partition {self.path} has lists for {len(lists)} "
                "clients; make it that"
            )
        parts = [np.sort(np.array(own, dtype=np.int64)) for own in lists]
        try:
            check_parts(parts, len(labels))
        except UsageError as error:
            raise UsageError(f"partition {self.path}: {error}") from None
        return parts

    def _read(self) -> list[list[int]]:
        """The file's lists. Raises `UsageError` where it cannot be read, or has something else."""
        form = "give a JSON list that has one list of sample indices for each client"
        try:
            lists: list[list[int]] = msgspec.json.decode(
                read_text(Path(self.path), _MOST),
                type=Annotated[list[list[_Index]], msgspec.Meta(min_length=1)],
            )
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"partition {self.path} cannot be read ({reason_of(error)}): {form}") from None
        except msgspec.DecodeError as error:
            raise UsageError(f"partition {self.path} is not allowed ({error}): {form}") from None
        return lists
