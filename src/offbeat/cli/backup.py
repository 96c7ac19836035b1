"""The commands that back up a run's directory, and restore it."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.common_options import AsJson, AsPerson
from offbeat.cli.console import err, out, print_json
from offbeat.cli.durations import seconds_of
from offbeat.core.errors import RunError
from offbeat.core.extras import requires_extra

if TYPE_CHECKING:
    from offbeat.backup.backup import Backup
    from offbeat.backup.manifest import Manifest
    from offbeat.runs.record import RunRecord

_NOISE = "This run has noise or masked updates: "
_SECRET = (
    _NOISE
    + "the copy has what its server keeps secret, so keep it as safe as {}. If a server goes on from it, "
    "what was released after {} is not counted in ε: sites that were sent a later version leave, and new "
    "releases have noise of their own."
)
_GONE_BACK = (
    _NOISE
    + "what was released after {} is not counted in ε here. Sites that were sent a later version leave; new "
    "releases have noise of their own. Serve from this directory only if the one it is a copy of is lost."
)
_FORGOTTEN = (
    "Updates acknowledged after {} are not in it. A site that holds a later task gets a new one. Let no "
    "other server serve the same run."
)


def backup(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a run, or a server's state directory")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="folder of copies, best on another disk")],
    every: Annotated[
        str | None,
        typer.Option(help="copy again and again, so often, until the run has ended: 30s, 5m or 1h"),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="number of copies that stay, the newest; default: all")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a run into a folder of copies, also while it is served.

    Each copy is a new folder in TARGET, and is verified.
    """
    with requires_extra("net"):
        from offbeat.backup.backup import backup as back_up

    seconds = None if every is None else seconds_of("--every", every)
    shown = False
    while True:
        begun, ended = time.monotonic(), False
        try:
            made = back_up(directory, target, keep)
        except RunError as error:
            if seconds is None:
                raise
            err.print(f"offbeat: {error}; the next attempt is in {every}", markup=False, soft_wrap=True)
        else:
            _show_backup(directory, made, as_json=as_json, first=not shown)
            shown, ended = True, made.copy.record.status == "finished"
        if seconds is None or ended:
            return
        time.sleep(max(1.0, seconds - (time.monotonic() - begun)))


def restore(
    copy: Annotated[
        Path,
        typer.Argument(metavar="COPY", help="a copy, or the folder of copies, whose newest one is taken"),
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="where to; it is missing or empty")],
    by: AsPerson = None,
    as_json: AsJson = False,
) -> None:
    """Restore a run from a copy, and verify it.

    `offbeat backup` has made the copy.
    """
    with requires_extra("net"):
        from offbeat.backup.restore import restore as restore_run

    restored = restore_run(copy, directory, by)
    manifest = restored.manifest
    if as_json:
        print_json({"copy": str(restored.copy), "directory": str(directory), **_numbers(manifest)})
        return
    _say(f"restored {restored.copy} to {directory}: {manifest.text_of_state}; every file was verified")
    if goes_on(restored.record):
        _say(_FORGOTTEN.format(manifest.made))
        if _is_private(restored.record):
            _say(_GONE_BACK.format(manifest.made))


def goes_on(record: "RunRecord") -> bool:
    """Whether a run is a server's, and has not ended."""
    return record.served and record.status != "finished"


def _is_private(record: "RunRecord") -> bool:
    return "privacy" in record.meta


def _show_backup(directory: Path, made: "Backup", *, as_json: bool, first: bool) -> None:
    from offbeat.units import size_text

    copy, manifest = made.copy, made.copy.manifest
    if as_json:
        kept = {"folder": str(made.folder), "deleted": made.deleted, "left_out": copy.left_out}
        print_json({**kept, **_numbers(manifest)})
        return
    size = f"{len(manifest.files)} files, {size_text(manifest.bytes)}"
    older = f"; older copies deleted: {made.deleted}" if made.deleted else ""
    _say(f"copied to {made.folder}: {size}, {manifest.text_of_state}{older}")
    if copy.left_out:
        more = f" and {len(copy.left_out) - 3} more" if len(copy.left_out) > 3 else ""
        _say(f"left out, as these are links or no files: {', '.join(copy.left_out[:3])}{more}")
    if first and goes_on(copy.record) and _is_private(copy.record):
        _say(_SECRET.format(directory, manifest.made))


def _numbers(manifest: "Manifest") -> dict[str, object]:
    return {
        "made": manifest.made, "run": manifest.run, "status": manifest.status, "version": manifest.version,
        "rows": manifest.rows, "audit": manifest.audit, "files": len(manifest.files), "bytes": manifest.bytes,
    }  # fmt: skip


def _say(line: str) -> None:
    out.print(line, markup=False, soft_wrap=True)
