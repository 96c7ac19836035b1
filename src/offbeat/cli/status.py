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
    from offbeat.net.monitor.snapshot import Snapshot

TOKEN_VARIABLE = "OFFBEAT_TOKEN"


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
    """Show a run's sites and progress, from its directory or its live page; or a site's state."""
    if target.startswith(("http://", "https://")):
        token = read_token(token_file) if token_file else os.environ.get(TOKEN_VARIABLE, "").strip() or None
        with requires_extra("net"):
            from offbeat.net.monitor.client import fetch_snapshot
        snapshot = fetch_snapshot(target, token=token, ca=ca, unencrypted=unencrypted)
        state = "running" if snapshot.stopped is None else f"ended: {snapshot.stopped}"
    else:
        if token_file is not None or ca is not None or unencrypted:
            raise UsageError(
                f"--token-file, --ca and --unencrypted are for a live page: {target} is not a URL, which "
                "begins with http:// or https://"
            )
        from offbeat.runs.verify import is_site

        if is_site(Path(target)):
            _show_site(Path(target), as_json)
            return
        from offbeat.cli.state_dir import enrolled_sites, is_locked, not_running
        from offbeat.net.monitor.from_journal import snapshot_of
        from offbeat.net.monitor.snapshot import with_enrolled
        from offbeat.runs.record import read_run

        # A run that ends between the two has its end in the record.
        locked = Path(target).is_dir() and is_locked(Path(target))
        record = read_run(target)
        snapshot = with_enrolled(snapshot_of(record), enrolled_sites(Path(target)))
        state = record.status if record.stop_reason is None else f"{record.status}: {record.stop_reason}"
        if record.status == "running":
            stands = not_running(Path(target), locked=locked, served=record.served)
            state = state if stands is None else f"not running: {stands}"
    if as_json:
        print_json({"state": state, "run": snapshot})
    else:
        _show(snapshot, state)


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


def _show(s: "Snapshot", state: str) -> None:
    from offbeat.core.metric_names import finite, in_order
    from offbeat.units import duration_text, size_text

    age = f"{duration_text(round(s.seconds))} {'on its clock' if s.began is None else 'since it began'}"
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
    heads = ("site", "state", "task", "steps", "steps/s", "staleness", "updates", "samples", "last heard")
    table = plain_table(*heads)
    for column in table.columns:
        column.justify, column.no_wrap = "left" if column.header in ("site", "state") else "right", True
    for site in s.sites:
        silent = None if site.last_seen is None else duration_text(round(max(0.0, s.now - site.last_seen)))
        steps = f"{site.steps_done}/{site.steps}" if site.steps_done else str(site.steps)
        add_row(
            table, printable(site.name), site.state, "–" if site.task is None else str(site.task),
            "–" if site.task is None else steps, f"{site.speed:.3g}" if site.speed else "–",
            str(site.staleness) if site.staleness >= 0 else "–", str(site.updates), str(site.samples),
            "–" if silent is None else f"{silent} ago",
        )  # fmt: skip
    out.print(table)
    for alarm in s.alarms:
        out.print(f"alarm: {alarm}", markup=False)
    for reason, count in sorted(s.rejected.items()):
        out.print(f"rejected {count}: {printable(reason)}", markup=False)
