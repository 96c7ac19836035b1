"""A recorded journal that a run must repeat, row by row."""

from collections.abc import Iterable

from offbeat.core.errors import RunError
from offbeat.core.journal import Row, expand


class ReplayError(RunError):
    """A repeated run differs from its record.

    Args:
        difference: What the run gives now and what is recorded, as a clause.
        given: The row that the run gives, if it is a row that differs.
        recorded: The row in its place in the journal; None means the journal has ended.
    """

    def __init__(self, difference: str, given: Row | None = None, recorded: Row | None = None) -> None:
        super().__init__(
            f"the run cannot be brought back: {difference}. "
            "Use the version of Offbeat and the configuration it was started with"
        )
        self.given, self.recorded = given, recorded


class RecordedJournal:
    """The rows of a journal in order; `check` holds each row that a run gives against the next of them."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = iter(rows)
        self._next: Row | None = None

    def peek(self) -> Row | None:
        """The next recorded row; None means the journal has ended."""
        if self._next is None:
            self._next = next(self._rows, None)
        return self._next

    def check(self, row: Row) -> None:
        """Take a row that the run gives. Raises `ReplayError` unless it is recorded next."""
        for given in expand(row) if row.client is None else (row,):
            recorded, self._next = self.peek(), None
            if recorded != given:
                raise ReplayError(f"it now gives {given}, the journal has {recorded}", given, recorded)

    def finish(self) -> None:
        """The run gives no more rows. Raises `ReplayError` if one is left."""
        if (recorded := self.peek()) is not None:
            raise ReplayError(f"it now gives None, the journal has {recorded}", None, recorded)
