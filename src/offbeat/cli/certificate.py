"""The command that makes and renews a server's own certificate."""

from typing import Annotated

import typer

from offbeat.cli.common_options import StateDirectory
from offbeat.cli.console import out
from offbeat.core.extras import requires_extra


def certificate(
    state: StateDirectory,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="name or IP address by which sites reach the server; may be repeated"
        ),
    ] = None,
) -> None:
    """Make, or renew, the server's own certificate.

    `offbeat serve` uses them without an option, and renews the certificate itself 30 days before its end.
    """
    with requires_extra("net"):
        from offbeat.net.auth.ca import OwnAuthority

    authority = OwnAuthority(state)
    authority.issue(host or ())
    out.print(
        f"{authority.certificate} is for {', '.join(authority.names)}, until {authority.expires:%Y-%m-%d}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    out.print(f"fingerprint of its authority: {authority.fingerprint}", markup=False, soft_wrap=True)
