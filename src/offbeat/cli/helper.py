"""The command that helps a run with secure aggregation."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.console import out
from offbeat.cli.options import (
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
from offbeat.cli.tokens import read_token
from offbeat.core.extras import requires_extra
from offbeat.net.backoff import GIVE_UP_AFTER
from offbeat.net.monitor.logs import setup_logs

SECTIONS = {
    "Run": ("address", "name", "state", "give_up_after"),
    "TLS and access": ("token_file", "ca", "cert", "key", "proxy", "insecure_plaintext"),
    "Logging": ("log", "log_level"),
}


def helper(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="the server: HOST:PORT, [IPV6]:PORT or unix:PATH")
    ],
    name: Annotated[str, typer.Option(help="the helper's name in the run's recipe")],
    state: Annotated[
        Path,
        typer.Option(metavar="DIR", help="directory for the helper's key; never restore it from a copy"),
    ],
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
    """Help a run with secure aggregation: hold seeds of masks, and give sums of masks."""
    with requires_extra("net"):
        from offbeat.net.auth.credentials import SiteCredentials
        from offbeat.net.client.connector import connector
    with requires_extra("secure", "secure aggregation: "):
        from offbeat.net.secure.helping import help_run

    setup_logs(log, log_level)
    give_up = seconds_or_never(give_up_after)
    token = None if token_file is None else read_token(token_file)
    credentials = SiteCredentials(name, token, ca, cert, key, insecure_plaintext)
    reason = asyncio.run(
        help_run(
            connector(address, credentials=credentials, proxy=proxy), name, state,
            give_up_after=give_up,
        )
    )  # fmt: skip
    out.print(f"the run has ended: {reason}; {state} is of no more use", markup=False)
