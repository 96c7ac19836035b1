"""The command that helps a run with secure aggregation."""

from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.common_options import (
    Certificate,
    CertificateKey,
    GiveUpAfter,
    InsecurePlaintext,
    Log,
    LogLevel,
    ProxyOption,
    ServerCA,
    TokenFile,
    seconds_or_never,
)
from offbeat.cli.console import out
from offbeat.cli.event_loop import run_until_interrupted
from offbeat.cli.site_access import Access, Address, KitOption
from offbeat.core.errors import UsageError
from offbeat.core.extras import requires_extra
from offbeat.net.backoff import GIVE_UP_AFTER
from offbeat.net.monitor.logs import setup_logs
from offbeat.net.notify import at_work

SECTIONS = {
    "Run": ("address", "name", "state", "give_up_after"),
    "TLS and access": ("kit", "token_file", "ca", "cert", "key", "proxy", "insecure_plaintext"),
    "Logging": ("log", "log_level"),
}


def helper(
    state: Annotated[
        Path,
        typer.Option(metavar="DIR", help="directory for the helper's key; never restore it from a copy"),
    ],
    address: Address = None,
    name: Annotated[
        str | None, typer.Option(help="the helper's name, as the run's recipe has it; a kit has it already")
    ] = None,
    kit: KitOption = None,
    token_file: TokenFile = None,
    ca: ServerCA = None,
    cert: Certificate = None,
    key: CertificateKey = None,
    proxy: ProxyOption = None,
    insecure_plaintext: InsecurePlaintext = False,
    give_up_after: GiveUpAfter = GIVE_UP_AFTER,
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
    give_up = seconds_or_never(give_up_after)
    with requires_extra("net"):
        access = Access(address, kit, name, token_file, ca, cert, key, proxy, insecure_plaintext, state)
        connect = access.connect()
    if access.site is None:
        raise UsageError("give --name NAME, the helper's as the run's recipe has it, or --kit FILE")
    helper_name = access.site

    async def helping() -> str:
        async with at_work(f"helps a run at {access.place}"):
            return await help_run(connect, helper_name, state, give_up_after=give_up)

    reason = run_until_interrupted(helping())
    out.print(f"the run has ended: {reason}; {state} is of no more use", markup=False)
