"""The audit of a run as its directory has it."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

import msgspec
from msgspec import convert

from offbeat.net.audit import OF_TOKENS, SELECT, AuditLine, AuditLog, Head
from offbeat.runs.damage import damage, reading
from offbeat.runs.record import RunRecord
from offbeat.runs.schema import DATABASE
from offbeat.version import __version__

AuditRow = tuple[int, str, str]
"""Number, line and hash of a row."""


def audit_rows(record: RunRecord) -> Iterator[AuditRow]:
    """The rows of a run's audit, in order; none where it has none, as a simulation.

    Raises:
        DamageError: A row has other types.
    """
    if not record.has_table("audit"):
        return
    for seq, line, digest in record.select(SELECT):
        if not (isinstance(seq, int) and isinstance(line, str) and isinstance(digest, str)):
            raise damage(record.path / DATABASE, f"has a row of its audit that is none, {seq!r:.40}")
        yield seq, line, digest


def ended_at(record: RunRecord) -> datetime | None:
    """When a run ended. None means that it has not, or that its audit does not say when."""
    found = [line.timestamp for line in _lines(record) if line.event.get("action") == "run.end"]
    with suppress(ValueError, IndexError):
        return datetime.fromisoformat(found[-1])
    return None


def revoked_sites(record: RunRecord) -> frozenset[str]:
    """Names of the sites that were revoked, and not enrolled again, when the server looked last."""
    last = {str(line.event.get("site")): line.event["action"] for line in _lines(record) if _enrols(line)}
    return frozenset(name for name, action in last.items() if action == "site.revoke")


def _enrols(line: AuditLine) -> bool:
    return line.event.get("action") in ("site.enrol", "site.revoke")


def _lines(record: RunRecord) -> Iterator[AuditLine]:
    """The rows of a run's audit that can be read; `offbeat audit` shows the others too."""
    for _, line, _ in audit_rows(record):
        with suppress(msgspec.DecodeError, RecursionError):
            yield msgspec.json.decode(line, type=AuditLine)


def open_audit(audit: AuditLog, record: RunRecord, run: str, action: str) -> None:
    """Let an audit go on where a run's record ends, with a row for this beginning."""
    with reading(record.path / DATABASE):
        head = next((Head(*convert(row, tuple[int, str])) for row in record.select(_LAST)), Head())
        audit.open(run, head, (line for (line,) in record.select(_TOKEN_LINES)))
    audit.record(audit.operator, {"action": action, "offbeat": __version__})


_LAST = "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1"
_TOKEN_LINES = "SELECT line FROM audit WHERE {} ORDER BY seq".format(
    " OR ".join(f'line LIKE \'%"action":"{action}"%\'' for action in OF_TOKENS)
)
