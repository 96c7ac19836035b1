"""The command that shows a deployed run, or a site's own state."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.common_options import AsJson
from offbeat.cli.console import add_row, metric_text, out, plain_table, print_json
from offbeat.cli.tokens import read_token
from offbeat.core.errors import UsageError
from offbeat.core.extras import requires_extra
from offbeat.core.printable import printable

if TYPE_CHECKING:
    from offbeat.net.monitor.snapshot import SiteView, Snapshot
    from offbeat.runs.record import RunRecord

TOKEN_VARIABLE = "OFFBEAT_TOKEN"
HEADS = ("site", "state", "task", "steps", "steps/s", "staleness", "updates", "samples", "time", "last heard")
OF_NOW = ("last heard",)
"""Columns of a run that goes on: its clock stands still without its server."""
OF_TASKS = ("task", "steps")
"""Columns of a run that has not ended."""


def status(
    target: Annotated[
        str, typer.Argument(metavar="DIR|URL", help="a run's directory, its live page, or a site's state")
    ],
    token_file: Annotated[
        Path | None, typer.Option(help=f"file with the page's token; else ${TOKEN_VARIABLE}")
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="certificates to trust for a page with TLS")] = None,
    unencrypted: Annotated[
        bool, typer.Option("--unencrypted", help="allow the token to cross the network in readable form")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run's sites and progress, or a site's state.

    A run is shown from its directory, or from the URL of its live page.
    """
    if target.startswith(("http://", "https://")):
        token = read_token(token_file) if token_file else os.environ.get(TOKEN_VARIABLE, "").strip() or None
        with requires_extra("net"):
            from offbeat.net.monitor.dashboard_client import fetch_snapshot
        snapshot = fetch_snapshot(target, token=token, ca=ca, unencrypted=unencrypted)
        running = snapshot.stopped is None
        state = "running" if running else f"ended: {snapshot.stopped}"
    else:
        if token_file is not None or ca is not None or unencrypted:
            raise UsageError(
                f"--token-file, --ca and --unencrypted are for a live page: {target} is not a URL, which "
                "begins with http:// or https://"
            )
        from offbeat.runs.record import is_site

        if is_site(Path(target)):
            _show_site(Path(target), as_json)
            return
        from offbeat.cli.state_dir import enrolled_sites, is_locked, not_running
        from offbeat.net.audit_record import revoked_sites
        from offbeat.net.monitor.from_journal import snapshot_of
        from offbeat.net.monitor.snapshot import with_enrolled, with_revoked
        from offbeat.runs.record import read_run

        # A run that ends between the two has its end in the record.
        locked = Path(target).is_dir() and is_locked(Path(target))
        record = read_run(target)
        enrolled = enrolled_sites(Path(target))
        snapshot = with_enrolled(snapshot_of(record), enrolled)
        if enrolled is None:
            snapshot = with_revoked(snapshot, revoked_sites(record))
        state, running = _state_of(record), record.status == "running"
        if running:
            stands = not_running(Path(target), locked=locked, served=record.served)
            running = stands is None
            state = state if stands is None else f"not running: {stands}"
    if as_json:
        print_json({"state": state, "run": snapshot})
    else:
        _show(snapshot, state, running=running)


def _state_of(record: "RunRecord") -> str:
    """The state that a run's record has: of one that has ended, when and why."""
    from offbeat.net.audit_record import ended_at

    if record.stop_reason is None:
        return record.status
    at = ended_at(record)
    when = "" if at is None else f" on {at:%Y-%m-%d %H:%M} UTC"
    return f"{'ended' if record.status == 'finished' else record.status}{when}: {record.stop_reason}"


def _show_site(directory: Path, as_json: bool) -> None:
    from offbeat.units import duration_text

    with requires_extra("net"):
        from offbeat.net.client.examples_ledger import ExamplesSpent
        from offbeat.net.client.store import SiteSummary

    summary, spent = SiteSummary.read(directory), ExamplesSpent.read(directory)
    if as_json:
        print_json({"site": summary, "privacy": None if spent is None else spent.text})
        return
    waits = "an update waits for the server's answer" if summary.waits else "no update waits"
    progress = summary.progress
    out.print(f"a site of run {summary.run}: {progress.text}; {waits}", markup=False)
    if progress.accepted is not None:
        ago = duration_text(round(max(0.0, time.time() - progress.accepted)))
        out.print(f"the server accepted its last update {ago} ago")
    if spent is not None:
        out.print(f"privacy of examples: {spent.text}", markup=False)


def _show(s: "Snapshot", state: str, *, running: bool) -> None:
    from offbeat.core.client_times import TIME_WORDS
    from offbeat.core.metric_names import finite, in_order
    from offbeat.units import duration_text, size_text

    age = f"{duration_text(round(s.seconds))} {'on its clock' if s.began is None else 'since it began'}"
    if s.stopped is not None:
        age = f"it took {duration_text(round(s.seconds))}"
    out.print(f"{printable(s.label)}: {printable(state)}; {age}", markup=False)
    out.print(
        f"version {s.version}, {s.arrived} updates arrived, {s.aggregated} aggregated, {s.dropped} dropped, "
        f"{s.lost} lost, {s.held} waiting, {s.running} in training; "
        f"up {size_text(s.bytes_up)}, down {size_text(s.bytes_down)}"
    )
    if s.waits_for is not None:
        out.print(s.waits_for)
    metric_texts = [
        metric_text(name, value)
        for name in in_order(s.metrics)
        if (value := finite(s.metrics[name])) is not None
    ]
    if metric_texts:
        out.print(f"last evaluation: {', '.join(metric_texts)}", markup=False)
    if s.privacy is not None:
        from offbeat.core.privacy.privacy_options import privacy_text

        out.print(privacy_text(s.privacy), markup=False)
    if s.helpers is not None:
        out.print(s.helpers.text, markup=False)
    rows = [_cells(site, s) for site in s.sites]
    heads = [head for head in HEADS if running or head not in OF_NOW]
    if s.stopped is not None:
        heads = [head for head in heads if head not in OF_TASKS]
    table = plain_table(*heads)
    for column in table.columns:
        column.justify, column.no_wrap = "left" if column.header in ("site", "state") else "right", True
    for row in rows:
        add_row(table, *(row[head] for head in heads))
    out.print(table)
    if any(site.times is not None for site in s.sites):
        out.print(f"time: {TIME_WORDS}, in % of the site's time in the run")
    for site in s.sites:
        for transfer in site.transfers:
            out.print(f"{printable(site.name)}: {printable(transfer.text)}", markup=False)
    for alarm in s.alarms:
        out.print(f"alarm: {alarm}", markup=False)
    for reason, count in sorted(s.rejected.items()):
        out.print(f"rejected {count}: {printable(reason)}", markup=False)


def _cells(site: "SiteView", s: "Snapshot") -> dict[str, str]:
    """The texts of a site's row, by column."""
    from offbeat.units import duration_text

    silent = None if site.last_seen is None else duration_text(round(max(0.0, s.now - site.last_seen)))
    steps = f"{site.steps_done}/{site.steps}" if site.steps_done else str(site.steps)
    # In a run that has ended, everybody who has not left is idle.
    ended = s.stopped is not None and site.state == "idle"
    return {
        "site": printable(site.name),
        "state": "–" if ended else site.state,
        "task": "–" if site.task is None else str(site.task),
        "steps": "–" if site.task is None else steps,
        "steps/s": f"{site.speed:.3g}" if site.speed else "–",
        "staleness": str(site.staleness) if site.staleness >= 0 else "–",
        "updates": str(site.updates),
        "samples": str(site.samples),
        "time": "–" if site.times is None else site.times.text,
        "last heard": "–" if silent is None else f"{silent} ago",
    }
