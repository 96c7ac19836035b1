"""The command that stops a server of this machine."""

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.common_options import AsPerson
from offbeat.cli.console import out
from offbeat.cli.state_dir import SERVER, is_locked, server_pid, tell_who_stops
from offbeat.core.errors import RunError, UsageError
from offbeat.net.auth.person import person


def stop(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the state directory of a running server")],
    end: Annotated[
        bool, typer.Option("--end", help="end the run: its current model becomes the final one")
    ] = False,
    by: AsPerson = None,
    wait: Annotated[float, typer.Option(help="seconds to wait for the server to stop")] = 150.0,
) -> None:
    """Stop a server of this machine, or end its run."""
    pid = server_pid(directory)
    tell_who_stops(directory, person(by))
    try:
        os.kill(pid, signal.SIGUSR1 if end else signal.SIGTERM)
    except ProcessLookupError:
        # The process has ended by itself at this moment.
        pass
    except PermissionError:
        raise UsageError(f"the server (process {pid}) is another user's: stop it as that user") from None
    deadline = time.monotonic() + wait
    while (activity := _activity(directory, pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if activity:
        raise RunError(f"the server (process {pid}) has not stopped in {wait:g} s; it still {activity}")
    out.print("the run has ended" if end else "the server has left; the run can be served again")


def _activity(directory: Path, pid: int) -> str:
    """The server's present activity; empty once it has written everything and its ports are free again."""
    if is_locked(directory):
        return f"writes {directory}"
    if not (directory / SERVER).exists():
        return ""
    try:
        os.kill(pid, 0)
    except OSError:
        # The process has ended without removing its file.
        return ""
    return "closes the connections of its sites, or waits for a scrape of its metrics"
