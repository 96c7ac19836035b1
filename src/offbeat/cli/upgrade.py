"""The command that upgrades a run's directory."""

from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.console import err, out
from offbeat.core.extras import requires_extra


def upgrade(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a run, or a server's state directory")],
    copies: Annotated[
        Path | None, typer.Option(metavar="TARGET", help="folder for a copy made before; default: DIR.copies")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what would be done, and change nothing")
    ] = False,
) -> None:
    """Check a run that no process writes, copy it, and bring it to the format of this version."""
    with requires_extra("net"):
        from offbeat.backup.upgrade import upgrade as upgrade_run

    target = copies or directory.with_name(f"{directory.resolve().name}.copies")
    done = upgrade_run(directory, target, dry_run=dry_run)
    if done.exposed is not None:
        err.print(f"warning: {done.exposed}", markup=False, soft_wrap=True)
    if not done.steps:
        taken = f"this version goes on with its format {done.before} as it is"
        line = f"nothing to do: {directory} is whole, and {taken}"
    else:
        verb = "would upgrade" if dry_run else "upgraded"
        line = f"{verb} {directory} from format {done.before} to {done.after}: {', '.join(done.steps)}"
        if done.copy is not None:
            line += f"; as it was before: {done.copy}"
    out.print(line, markup=False, soft_wrap=True)
