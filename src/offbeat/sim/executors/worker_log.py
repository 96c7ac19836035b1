"""What workers log: the process that drives them logs it, each line once, whatever the number of workers."""

import logging
from collections.abc import Iterable

Line = tuple[str, int, str]
"""Name of a logger, level, and text."""

_PACKAGE = "offbeat"


class WorkerLog(logging.Handler):
    """Keeps what Offbeat logs in a worker, until the worker replies."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = []
        logger = logging.getLogger(_PACKAGE)
        logger.handlers, logger.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self._lines.append((record.name, record.levelno, record.getMessage()))

    def take(self) -> list[Line]:
        """The lines since the last call."""
        lines, self._lines = self._lines, []
        return lines


def log_lines(lines: Iterable[Line], known: set[Line]) -> None:
    """Log what workers have logged, but for the lines that are `known`, which it extends."""
    for line in lines:
        if line not in known:
            known.add(line)
            name, level, text = line
            logging.getLogger(name).log(level, "%s", text)
