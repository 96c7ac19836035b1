"""The server's log: one line an event, for people on a terminal and as JSON for machines.

The package logs with the standard library: `logging.getLogger("offbeat.net")`, a short fixed sentence as the
message, and what it is about as `extra`, by the names in `FIELDS`.
"""

import json
import logging
import math
import sys
from datetime import UTC, datetime
from typing import IO, Any, Literal

from offbeat.core.errors import UsageError
from offbeat.core.printable import printable

FIELDS = (
    "run",
    "site",
    "client",
    "task",
    "base",
    "version",
    "staleness",
    "steps",
    "bytes",
    "seconds",
    "epsilon",
    "spent",
    "helper",
    "helpers",
    "epoch",
    "fingerprint",
    "releases",
    "reason",
)
"""Fields of a log line besides its time, level and event."""

Style = Literal["auto", "text", "json"]
STYLES: tuple[Style, ...] = ("auto", "text", "json")


class JsonLines(logging.Formatter):
    """One JSON object a line: `time` (UTC), `level`, `event`, then the fields that the line has."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record.

        Returns:
            The line, without its end; an exception is in `error`.
        """
        line: dict[str, Any] = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, allow_nan=False)


class PlainLines(logging.Formatter):
    """For a terminal: time, level where it is not the usual one, event, then `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record.

        Returns:
            The line, without its end; a site's text cannot break it or move the cursor.
        """
        parts = [f"{_time(record).astimezone():%H:%M:%S}"]
        if record.levelno != logging.INFO:
            parts.append(record.levelname.lower())
        parts.append(printable(record.getMessage()))
        parts += [f"{name}={printable(str(value))}" for name, value in _fields(record).items()]
        line = " ".join(parts)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def setup_logs(style: Style = "auto", level: str = "info", stream: IO[str] | None = None) -> None:
    """Send the package's log to a stream; a second call replaces the first.

    Args:
        style: "auto" is text on a terminal and JSON elsewhere.
        level: "debug", "info", "warning" or "error".
        stream: None means stderr.

    Raises:
        UsageError: There is no such style or level.
    """
    if style not in STYLES:
        raise UsageError(f"log style {style} is not allowed: choose one of {', '.join(STYLES)}")
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise UsageError(f"log level {level} is not allowed: choose debug, info, warning or error")
    out = stream or sys.stderr
    plain = out.isatty() if style == "auto" else style == "text"
    handler = logging.StreamHandler(out)
    handler.setFormatter(PlainLines() if plain else JsonLines())
    logger = logging.getLogger("offbeat")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(number)


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    there = {name: getattr(record, name) for name in FIELDS if getattr(record, name, None) is not None}
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in there.items()}
