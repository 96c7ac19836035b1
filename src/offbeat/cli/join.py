"""The command that takes part in a run as a site."""

import asyncio
import math
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.console import out
from offbeat.cli.options import Log, LogLevel, file_option
from offbeat.cli.transport import connect_to
from offbeat.core.errors import UsageError
from offbeat.data.site import site_data
from offbeat.local.learner import check_device
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.backoff import GIVE_UP_AFTER
from offbeat.net.monitor.logs import setup_logs
from offbeat.net.wire.limits import Limits


def join(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="the server")],
    data: Annotated[
        str,
        typer.Option(
            "--data",
            metavar="DATA",
            help="DATASET, DATASET:GROUP, DATASET:K/N (the Kth of N equal shares), or module:function",
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="the site's name, where no credential says it")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="keep the site's state and update here")
    ] = None,
    token_file: Annotated[
        Path | None, file_option("--token-file", "with the line that `offbeat enrol` printed")
    ] = None,
    ca: Annotated[
        Path | None, file_option("--ca", "who signs the server's certificate (PEM); else the system's")
    ] = None,
    cert: Annotated[Path | None, file_option("--cert", "the site's certificate (PEM)")] = None,
    key: Annotated[Path | None, file_option("--key", "its key (PEM)")] = None,
    insecure_plaintext: Annotated[
        bool, typer.Option("--insecure-plaintext", help="no TLS beyond loopback: all can be read and changed")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:N or mps")] = "cpu",
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="of PyTorch; more change the last bits")
    ] = 1,
    patience: Annotated[
        float, typer.Option("--patience", help="give up after so many seconds without a server; inf: never")
    ] = GIVE_UP_AFTER,
    keep_labels: Annotated[
        bool, typer.Option("--keep-labels", help="do not tell the server the number of samples of each class")
    ] = False,
    pace: Annotated[
        float | None,
        typer.Option("--pace", help="seconds that a local step takes at least, to try things out"),
    ] = None,
    log: Log = "auto",
    log_level: LogLevel = "info",
) -> None:
    """Take part in a run as a site, with data that stay here."""
    from offbeat.net.client.join import join as join_run

    setup_logs(log, log_level)
    if pace is not None and not (math.isfinite(pace) and pace >= 0):
        raise UsageError(f"--pace {pace} is not allowed: give seconds, 0 or more")
    if not patience > 0:  # nan too
        raise UsageError(f"--patience {patience} is not allowed: give seconds above 0, or inf")
    credentials = SiteCredentials(name, _secret(token_file), ca, cert, key, insecure_plaintext)
    check_device(device)
    own = site_data(data)
    limits = Limits()

    async def run() -> str:
        return await join_run(
            lambda: connect_to(address, credentials, limits), own,
            state=state, device=device, threads=threads, tell_labels=not keep_labels,
            patience=None if math.isinf(patience) else patience,
            pace=pace or 0.0,
        )  # fmt: skip

    reason = asyncio.run(run())
    out.print(f"the run has ended: {reason}", markup=False)


def _secret(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file} cannot be read: {error}") from None
