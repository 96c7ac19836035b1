"""The command that verifies directories."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.allow import AllowOption, allowed_names
from offbeat.cli.common_options import AsJson
from offbeat.cli.console import out, print_json
from offbeat.core.errors import UsageError

if TYPE_CHECKING:
    from offbeat.allowed import Allowed
    from offbeat.runs.verify import Verification


def verify(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="a run, a folder of runs, a server's or a site's state")
    ],
    allow: AllowOption = None,
    as_json: AsJson = False,
) -> None:
    """Check every file of a run, a server or a site.

    The checksums are checked, and the runs are replayed. A problem gives exit code 1.
    """
    from offbeat.cli.state_dir import is_locked
    from offbeat.runs.schema import LOCK
    from offbeat.runs.verify import directories
    from offbeat.runs.verify import verify as verify_files
    from offbeat.units import size_text

    places = directories(directory) if directory.is_dir() else []
    if not places:
        raise UsageError(f"{directory} holds no run and no site's state: give the directory of one")
    problems, files, nbytes, rows = list[str](), 0, 0, 0
    allowed = allowed_names(allow, [directory])
    for place in places:
        if (place / LOCK).is_file() and is_locked(place):
            raise UsageError(f"{place}: a process is writing it; stop that first, or verify a copy")
        verification = verify_files(place)
        if verification.record is not None:
            rows += _replayed(verification, allowed)
        if verification.exposed is not None:
            verification.problems.append(verification.exposed)
        if not as_json:
            for line in verification.problems:
                out.print(line, markup=False, soft_wrap=True)
        problems += verification.problems
        files += verification.files
        nbytes += verification.nbytes
    if as_json:
        counts = {"directories": len(places), "files": files, "bytes": nbytes, "rows_replayed": rows}
        print_json({"problems": problems, **counts})
    else:
        looked = f"directories {len(places)}, files {files} ({size_text(nbytes)})"
        out.print(f"problems {len(problems)}; {looked}, journal rows replayed {rows}", markup=False)
    if problems:
        raise typer.Exit(1)


def _replayed(verification: "Verification", allowed: "Allowed") -> int:
    """Replay a run, and read its stored updates and tokens; returns the number of rows replayed."""
    from offbeat.cli.state_dir import TOKENS
    from offbeat.core.errors import RunError
    from offbeat.recipes.build import recorded_algorithm
    from offbeat.sim.replay import replay

    record = verification.record
    assert record is not None
    rows = 0
    if not verification.problems:
        # A replay would only find the same problems again.
        with verification.noting():
            result = replay(record, recorded_algorithm(record, allowed))
            rows = result.events + result.commands
            if result.difference is not None:
                raise RunError(
                    f"{record.path}: the journal's replay differs at {result.difference}; use the version of "
                    f"Offbeat that made it ({record.meta.get('offbeat')}), or restore the run from a copy"
                )
    if record.served:
        from offbeat.net.audit import problems
        from offbeat.net.audit_record import audit_rows
        from offbeat.net.auth.tokens import read
        from offbeat.net.server.stored_updates import damaged_updates

        with verification.noting():
            verification.problems += damaged_updates(record)
        with verification.noting():
            verification.problems += (
                f"{record.path}: the audit's {problem}" for problem in problems(audit_rows(record))
            )
        if (record.path / TOKENS).exists():
            with verification.noting():
                read(record.path / TOKENS)
    return rows
