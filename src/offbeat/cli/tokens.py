"""The commands that make and revoke tokens, of sites and of the live page."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.common_options import StateDirectory, file_option
from offbeat.cli.console import out
from offbeat.cli.state_dir import PAGE_TOKEN, TOKENS, make_directory
from offbeat.core.errors import UsageError, reason_of
from offbeat.core.extras import requires_extra

if TYPE_CHECKING:
    from offbeat.net.kit import Kit

KIT_LIFE = "90d"
"""How long the token of a kit lives, if nothing else is said."""


def enrol(
    site: Annotated[str, typer.Argument(metavar="SITE", help="the site's name")],
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="the run's directory; its tokens.json")
    ] = None,
    tokens: Annotated[Path | None, file_option("the tokens' file, instead of --state")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="the site's last token stays valid beside the new one")
    ] = False,
    samples: Annotated[
        str | None,
        typer.Option(metavar="MIN:MAX", help="numbers of samples that the site may have; else as they were"),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="life of the token: 90d, 12h or never; else 90d in a kit, and never without"
        ),
    ] = None,
    kit: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="KIT", help="write the site's kit: all that it needs to join"),
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="where the site finds the server, for its kit")
    ] = None,
    ca: Annotated[
        Path | None,
        file_option("who signs the server's certificate (PEM), for the kit; else the directory's own"),
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="revoke the site's tokens instead")] = False,
) -> None:
    """Make a token for a site and print it, or its kit; only the token's hash is stored at the server."""
    from offbeat.cli.durations import life_of
    from offbeat.net.auth import tokens as store

    if (state is None) == (tokens is None):
        raise UsageError("give --state DIR or --tokens FILE: one of them")
    if revoke and keep:
        raise UsageError("--revoke ends all of a site's tokens, and --keep leaves one: give one of them")
    allowed = None if samples is None else _sample_range(samples)
    if revoke and (allowed or expires or kit or address or ca):
        given = {"--samples": samples, "--expires": expires, "-o": kit, "--address": address, "--ca": ca}
        option, value = next((option, value) for option, value in given.items() if value)
        raise UsageError(f"{option} {value} is for a site with a token: give --revoke alone")
    life = life_of("--expires", expires or (KIT_LIFE if kit is not None else "never"))
    if kit is not None:
        check_kit(kit, state, address, ca)
    elif address is not None or ca is not None:
        raise UsageError("--address and --ca are for a kit: give -o FILE too")
    path = tokens or Path(state or "") / TOKENS
    if revoke:
        store.revoke(path, site)
        out.print(f"{site} has no token any more", markup=False)
    else:
        make_directory(path.parent, private=tokens is None)
        token = store.enrol(path, site, keep=keep, samples=allowed, life=life)
        if kit is None:
            print(token)  # noqa: T201
        else:
            _write_kit(kit, token, life, state, str(address), ca)


def check_kit(kit: Path, state: Path | None, address: str | None, ca: Path | None) -> None:
    """Check, before the site's old token ends, that its kit can be written. Raises `UsageError`."""
    with requires_extra("net"):
        from offbeat.net.address import split
        from offbeat.net.auth.ca import OwnAuthority, covers
        from offbeat.net.auth.credentials import pem

    if address is None or split(address)[1] == 0:
        raise UsageError(
            f"-o {kit} needs --address HOST:PORT, by which the site finds the server, such as "
            "fl.example.org:7117"
        )
    if kit.exists():
        raise UsageError(f"-o {kit} is there already: delete it, or choose another name")
    if not os.access(kit.absolute().parent, os.W_OK | os.X_OK):
        raise UsageError(f"-o {kit} cannot be written: {kit.absolute().parent} is no directory of this user")
    own = None if state is None else OwnAuthority(state)
    if ca is not None:
        pem(ca)
    elif own is not None and own.exists and not covers(own.names, split(address)[0]):
        raise UsageError(
            f"--address {address}: the server's certificate is for {', '.join(own.names)}; give one of them, "
            f"or make another: offbeat certificate --state {state} --host {split(address)[0]} --host …"
        )


def _write_kit(kit: Path, token: str, life: int, state: Path | None, address: str, ca: Path | None) -> None:
    """Write a site's kit, and say what to do with it."""
    made = write_site_kit(kit, token, life, state, address, ca)
    lines = [f"{kit}: site {made.name} of the server at {address}; its token ends: {made.ends}"]
    if made.fingerprint is not None:
        lines.append(f"fingerprint of the server's authority: {made.fingerprint}")
    lines.append("give it to the site in a way that nobody else can read; there: offbeat join --kit …")
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


def write_site_kit(
    kit: Path, token: str, life: int, state: Path | None, address: str, ca: Path | None = None
) -> "Kit":
    """Write a site's kit, with the server's own authority where there is no other one.

    Args:
        kit: The file.
        token: The site's token.
        life: Seconds that the token lives. 0 means for ever.
        state: The server's state directory. None means that there is none.
        address: Where the site finds the server.
        ca: Who signs the server's certificate. None means the directory's own authority, if there is one.
    """
    from offbeat.cli.kit import policy_template
    from offbeat.net.auth.ca import OwnAuthority
    from offbeat.net.auth.credentials import pem
    from offbeat.net.kit import make_kit, write_kit
    from offbeat.version import __version__

    own = None if state is None or not OwnAuthority(state).exists else OwnAuthority(state).ca
    signer = ca or own
    text = None if signer is None else pem(signer).decode()
    made = make_kit(
        address, token, time.time() + life if life else None, text, policy_template(), __version__
    )
    write_kit(kit, made)
    return made


def _sample_range(text: str) -> tuple[int, int]:
    """The range of the option `--samples`: MIN:MAX, either of which may be left out."""
    least, colon, most = text.partition(":")
    if colon and all(not end or (end.isascii() and end.isdigit()) for end in (least, most)):
        allowed = max(1, int(least or 1)), int(most or 2**40)
        if allowed[0] <= allowed[1] <= 2**40:
            return allowed
    raise UsageError(f"--samples {text} is not allowed: give MIN:MAX, such as 100:5000, :5000 or 100:")


def dashboard_token(state: StateDirectory) -> None:
    """Make the token of a run's live page and print it; the previous one is no longer valid."""
    from offbeat.net.auth.tokens import DASHBOARD, make_token

    make_directory(state, private=True)
    print(make_token(state / PAGE_TOKEN, DASHBOARD))  # noqa: T201


def read_token(file: Path) -> str:
    """The token of the file of `--token-file`. Raises `UsageError` if it cannot be read."""
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file} cannot be read: {reason_of(error)}") from None
