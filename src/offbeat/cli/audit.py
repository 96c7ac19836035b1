"""The command that shows and verifies a run's audit, and shows the record of what has left a site."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from offbeat.cli.console import add_row, out, plain_table
from offbeat.cli.durations import seconds_of
from offbeat.core.errors import RunError, UsageError
from offbeat.core.extras import requires_extra


def audit(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a run's directory, or a site's")],
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="only later rows: 2026-11-26, 2026-11-26T10:00, or 2d ago as 2d"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the rows as JSON lines")] = False,
    head: Annotated[
        str | None,
        typer.Option(metavar="SEQ:HASH", help="with --verify: a head of before, as the server's log has it"),
    ] = None,
    verifies: Annotated[
        bool, typer.Option("--verify", help="check the chain of a run's rows instead")
    ] = False,
) -> None:
    """Show who came to a run, or what has left a site.

    The audit of a run also has what its operator did.
    """
    with requires_extra("net"):
        from offbeat.cli.sent import show_sent
        from offbeat.net.audit_record import audit_rows
        from offbeat.net.client.sent_lines import has_sent_lines
    from offbeat.runs.record import is_site, read_run

    if head is not None and not verifies:
        raise UsageError(f"--head {head} is for a check: give --verify too")
    if verifies and (since is not None or as_json):
        raise UsageError("--since and --json are for showing: --verify reads the whole chain")
    begin = "" if since is None else _since(since)
    if has_sent_lines(directory) or is_site(directory):
        if verifies:
            raise UsageError(
                f"--verify is not allowed for {directory}: the record of a site or a helper has no chain"
            )
        show_sent(directory, begin, as_json=as_json)
        return
    record = read_run(directory)
    rows = audit_rows(record)
    if verifies:
        _verify(directory, list(rows), head)
        return
    shown = [row for row in rows if _line(row).get("timestamp", "") >= begin]
    if as_json:
        for row in shown:
            line = {**_line(row), "seq": row[0], "hash": row[2]}
            print(msgspec.json.encode(line).decode())  # noqa: T201
    else:
        _show(shown)


def _verify(directory: Path, rows: list[tuple[int, str, str]], head: str | None) -> None:
    """Print the head of a chain that is whole. Raises `RunError` for one that is not, with its rows."""
    from offbeat.net.audit import Head, parse_head, problems

    known = None if head is None else parse_head(head)
    if head is not None and known is None:
        raise UsageError(f"--head {head[:80]} is not allowed: give SEQ:HASH, as the server's log has it")
    found = list(problems(rows, known))
    for problem in found:
        out.print(problem, markup=False, soft_wrap=True)
    if found:
        raise RunError(f"the audit of {directory} is not as it was written ({len(found)} of its rows)")
    if not rows:
        out.print(f"{directory} has no audit: it is a simulation", markup=False)
        return
    last = Head(rows[-1][0], rows[-1][2])
    out.print(f"{len(rows)} rows are as they were written; head {last}", markup=False, soft_wrap=True)
    if head is None:
        out.print(
            "rows deleted from the end leave no trace here: compare an earlier head with --head, from the "
            "server's log or a copy",
            markup=False, soft_wrap=True,
        )  # fmt: skip


def _line(row: tuple[int, str, str]) -> dict[str, Any]:
    """The row as JSON; one that was damaged is shown as far as it can be."""
    try:
        return dict(msgspec.json.decode(row[1], type=dict[str, Any]))
    except (msgspec.DecodeError, RecursionError):
        return {"event": {"action": "damaged row"}}


def _show(rows: list[tuple[int, str, str]]) -> None:
    from offbeat.net.audit import OPERATOR_ID, printable

    table = plain_table("time", "action", "who", "from", "status", "what")
    for row in rows:
        line = _line(row)
        actor, event = _mapping(line.get("actor")), dict(_mapping(line.get("event")))
        action = event.pop("action", "")
        event.pop("run_id", None)
        what = ", ".join(f"{name} {value}" for name, value in event.items() if value is not None)
        who = actor.get("id") or "–"
        if who == OPERATOR_ID:
            who = f"{who} ({actor.get('description')})"
        cells = (
            line.get("timestamp", ""), action, who, actor.get("ip_address") or "–",
            line.get("status", ""), what,
        )  # fmt: skip
        add_row(table, *(printable(str(cell)) for cell in cells))
    out.print(table)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _since(text: str) -> str:
    """The moment of `--since` as rows write it. Raises `UsageError`."""
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        try:
            moment = datetime.now(UTC) - timedelta(seconds=seconds_of("--since", text))
        except UsageError:
            raise UsageError(
                f"--since {text[:40]} is not allowed: give a date and time (UTC, if it says no other), such "
                "as 2026-11-26T10:00, or a length of time, such as 2d"
            ) from None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
