"""The command that stops a server of this machine."""

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.place import held, running
from offbeat.console import out
from offbeat.core.errors import RunError


def stop(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the state directory of a running server")],
    end: Annotated[
        bool, typer.Option("--end", help="end the run: its model as it is becomes the final one")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", help="seconds to wait until the server has stopped")
    ] = 60.0,
) -> None:
    """Stop a server of this machine: leave its run to go on another time, or end it."""
    told = running(directory)
    os.kill(told, signal.SIGUSR1 if end else signal.SIGTERM)
    deadline = time.monotonic() + wait
    while time.monotonic() < deadline:
        if not held(directory):
            out.print("the run has ended" if end else "the server has left; the run can be served again")
            return
        time.sleep(0.1)
    raise RunError(f"the server (process {told}) has not stopped in {wait:g} s; it still writes {directory}")
