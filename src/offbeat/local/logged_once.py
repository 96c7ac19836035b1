"""Warnings of a learner that are logged once, however many clients, tasks and evaluations they hold for."""

import logging

log = logging.getLogger(__name__)


class LoggedOnce:
    """Logs each line once; the copies of a learner share it."""

    def __init__(self) -> None:
        self._lines = set[str]()

    def warn(self, line: str) -> None:
        """Log a line, unless it has been logged."""
        if line not in self._lines:
            self._lines.add(line)
            log.warning("%s", line)
