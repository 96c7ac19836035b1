"""The command that helps a run with secure aggregation."""

from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.common_options import AccessSets, Log, LogLevel
from offbeat.cli.console import out
from offbeat.cli.event_loop import run_until_interrupted
from offbeat.cli.keys import grouped_sets
from offbeat.cli.site_access import ACCESS, Access, Target
from offbeat.core.errors import UsageError
from offbeat.core.extras import requires_extra
from offbeat.net.monitor.logs import setup_logs
from offbeat.net.notify import at_work

GROUPS = {"access": ACCESS}
SECTIONS = {
    "Run": ("target", "name", "state", "sets"),
    "TLS and access": ("access.*",),
    "Logging": ("log", "log_level"),
}


def helper(
    target: Target,
    state: Annotated[
        Path,
        typer.Option(metavar="DIR", help="directory for the helper's key; never restore it from a copy"),
    ],
    name: Annotated[
        str | None, typer.Option(help="the helper's name, as the run's recipe has it; a kit has it already")
    ] = None,
    sets: AccessSets = None,
    log: Log = "auto",
    log_level: LogLevel = "info",
) -> None:
    """Help a run with secure aggregation.

    A helper holds seeds of masks, and gives sums of masks.

    Secure aggregation is experimental: no cryptographer has reviewed its design or its implementation. Do not
    let the safety of anyone's data depend on it alone.
    """
    with requires_extra("secure", "secure aggregation: "):
        from offbeat.net.secure.helping import help_run

    setup_logs(log, log_level)
    settings = grouped_sets(sets, GROUPS)
    with requires_extra("net"):
        access = Access.of(target, name, settings.get("access", {}), state)
        connect = access.connect()
    if access.name is None:
        raise UsageError("give --name NAME, the helper's as the run's recipe has it, or its kit")
    helper_name, give_up_after = access.name, access.options.give_up_after

    async def helping() -> str:
        async with at_work(f"helps a run at {access.place}"):
            return await help_run(connect, helper_name, state, give_up_after=give_up_after)

    reason = run_until_interrupted(helping())
    out.print(f"the run has ended: {reason}; {state} is of no more use", markup=False)
