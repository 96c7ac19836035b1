"""The commands that make and revoke tokens, of sites and of the live page."""

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.common_options import AsPerson, StateDirectory, file_option
from offbeat.cli.console import err, out
from offbeat.cli.secret_file import TokenOut, new_secret, write_token
from offbeat.cli.state_dir import PAGE_TOKEN, TOKENS, make_directory
from offbeat.core.errors import UsageError, reason_of
from offbeat.core.extras import requires_extra

KIT_LIFE = "90d"
"""How long the token of a kit lives, if nothing else is said."""
_HAND_ON = "give it to the site in a way that nobody else can read; there"


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
    token_out: TokenOut = None,
    by: AsPerson = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="revoke the site's tokens instead")] = False,
) -> None:
    """Make a token for a site, or its kit.

    The token is printed once. Only its hash is stored at the server.
    """
    from offbeat.cli.durations import life_of
    from offbeat.net.auth import tokens as store
    from offbeat.net.auth.person import person

    if (state is None) == (tokens is None):
        raise UsageError("give --state DIR or --tokens FILE: one of them")
    if revoke and keep:
        raise UsageError("--revoke ends all of a site's tokens, and --keep leaves one: give one of them")
    allowed = None if samples is None else _sample_range(samples)
    if revoke and (allowed or expires or kit or address or ca or token_out):
        given = {
            "--samples": samples, "--expires": expires, "-o": kit, "--address": address, "--ca": ca,
            "--token-out": token_out,
        }  # fmt: skip
        option, value = next((option, value) for option, value in given.items() if value)
        raise UsageError(f"{option} {value} is for a site with a token: give --revoke alone")
    life = life_of("--expires", expires or (KIT_LIFE if kit is not None else "never"))
    if kit is not None and token_out is not None:
        raise UsageError(f"-o {kit} has the token, so --token-out {token_out} has no use: give one of them")
    if kit is not None:
        check_kit(kit, state, address, ca)
    elif address is not None or ca is not None:
        raise UsageError("--address and --ca are for a kit: give -o FILE too")
    path = tokens or Path(state or "") / TOKENS
    if revoke:
        store.revoke(path, site, person(by))
        out.print(f"{site} has no token any more", markup=False)
        return

    def write(token: str) -> None:
        if kit is not None:
            write_site_kit(kit, token, life, state, str(address), ca)
        elif token_out is not None:
            write_token(token_out, token)

    with new_secret("-o" if kit is not None else "--token-out", kit or token_out):
        _directory_of_tokens(path.parent, private=tokens is None)
        token = store.enrol(path, site, keep=keep, samples=allowed, life=life, hand_over=write, by=person(by))
    if kit is not None:
        _tell_of_kit(kit)
    elif token_out is not None:
        line = f"{token_out}: the token of site {site}; {_HAND_ON}: offbeat join … --token-file …"
        out.print(line, markup=False, soft_wrap=True)
    else:
        print(token)  # noqa: T201


def _directory_of_tokens(directory: Path, *, private: bool) -> None:
    """Make the directory of tokens if it is missing, and say so, since its name may have a typing error."""
    missing = not directory.exists()
    make_directory(directory, private=private)
    if missing:
        err.print(
            f"made {directory}: no run and no certificate is there; if its name is wrong, delete it, and "
            "give the run's directory",
            markup=False, soft_wrap=True,
        )  # fmt: skip


def check_kit(kit: Path, state: Path | None, address: str | None, ca: Path | None) -> None:
    """Check what a kit needs, before the site's old token ends. Raises `UsageError`."""
    with requires_extra("net"):
        from offbeat.net.address import split
        from offbeat.net.auth.ca import OwnAuthority, covers
        from offbeat.net.auth.credentials import pem
        from offbeat.net.kit import authorities_in

    if address is None or split(address)[1] == 0:
        raise UsageError(
            f"-o {kit} needs --address HOST:PORT, by which the site finds the server, such as "
            "fl.example.org:7117"
        )
    own = None if state is None else OwnAuthority(state)
    if ca is not None:
        text = pem(ca).decode("utf-8", "replace")
        try:
            authorities_in(text)
        except UsageError as error:
            raise UsageError(f"--ca {ca}: {error}") from None
    elif own is not None and own.exists and not covers(own.names, split(address)[0]):
        raise UsageError(
            f"--address {address}: the server's certificate is for {', '.join(own.names)}; give one of them, "
            f"or make another: offbeat certificate --state {state} --host {split(address)[0]} --host …"
        )


def _tell_of_kit(file: Path) -> None:
    """Say what to do with a site's kit."""
    from offbeat.net.kit import KitFile

    made = KitFile(file).read()
    lines = [f"{file}: site {made.name} of the server at {made.address}; its token ends: {made.ends}"]
    if made.fingerprint is not None:
        lines.append(f"fingerprint of the server's authority: {made.fingerprint}")
    lines.append(f"{_HAND_ON}: offbeat join --kit …")
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


def write_site_kit(
    kit: Path, token: str, life: int, state: Path | None, address: str, ca: Path | None = None
) -> None:
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


def _sample_range(text: str) -> tuple[int, int]:
    """The range of the option `--samples`: MIN:MAX, either of which may be left out."""
    least, colon, most = text.partition(":")
    if colon and all(not end or (end.isascii() and end.isdigit()) for end in (least, most)):
        allowed = max(1, int(least or 1)), int(most or 2**40)
        if allowed[0] <= allowed[1] <= 2**40:
            return allowed
    raise UsageError(f"--samples {text} is not allowed: give MIN:MAX, such as 100:5000, :5000 or 100:")


def dashboard_token(state: StateDirectory, token_out: TokenOut = None) -> None:
    """Make the token of a run's live page and print it.

    The previous token is no longer valid.
    """
    from offbeat.net.auth.tokens import DASHBOARD, make_token

    path = state / PAGE_TOKEN
    with new_secret("--token-out", token_out):
        _directory_of_tokens(state, private=True)
        write = None if token_out is None else partial(write_token, token_out)
        token = make_token(path, DASHBOARD, hand_over=write)
    if token_out is None:
        print(token)  # noqa: T201
    else:
        out.print(f"{token_out}: the token of the live page", markup=False, soft_wrap=True)


def read_token(file: Path) -> str:
    """The token of the file of `--token-file`. Raises `UsageError` if it cannot be read."""
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file} cannot be read: {reason_of(error)}") from None
