"""The command that makes and revokes tokens, of sites and of the live page, and the server's certificate."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.common_options import AsPerson, file_option
from offbeat.cli.console import err, out
from offbeat.cli.secret_file import new_secret, write_token
from offbeat.cli.state_dir import PAGE_TOKEN, TOKENS, make_directory
from offbeat.core.errors import UsageError, reason_of
from offbeat.core.extras import requires_extra

KIT_LIFE = "90d"
"""How long the token of a kit lives, if nothing else is said."""
_HAND_ON = "give it to the site in a way that nobody else can read; there"


def enrol(
    site: Annotated[str | None, typer.Argument(metavar="[SITE]", help="the site's name")] = None,
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
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="write the site's kit, with --address; without it, the token alone",
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="where the site finds the server, for its kit")
    ] = None,
    ca: Annotated[
        Path | None,
        file_option("who signs the server's certificate (PEM), for the kit; else the directory's own"),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option("--cert", metavar="FILE", help="the site's own certificate (PEM), for the kit"),
    ] = None,
    key: Annotated[Path | None, file_option("the key of the site's certificate (PEM), for the kit")] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="make or renew the directory's own certificate, for this name or address; may be repeated",
        ),
    ] = None,
    by: AsPerson = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="revoke the site's tokens instead")] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="make the token of the run's live page instead")
    ] = False,
) -> None:
    """Make a token for a site, or its kit.

    The token is printed once. Only its hash is stored at the server. A kit has the authority of the
    directory's own certificate. Both are made with the first kit, or with --host, which needs no SITE.
    `offbeat serve` uses them without an option, and renews the certificate itself 30 days before its end.
    """
    from offbeat.cli.durations import life_of
    from offbeat.net.auth import tokens as store
    from offbeat.net.auth.person import person

    if (state is None) == (tokens is None):
        raise UsageError("give --state DIR or --tokens FILE: one of them")
    of_token: dict[str, object] = {
        "--samples": samples, "--expires": expires, "--out": out_file, "--address": address, "--ca": ca,
        "--cert": certificate, "--key": key,
    }  # fmt: skip
    of_site = {"SITE": site, "--keep": keep, "--revoke": revoke, **of_token}
    if dashboard:
        extra = _given({**of_site, "--out": None, "--host": host, "--tokens": tokens})
        if state is None or extra:
            others = f"; leave out {', '.join(extra)}" if extra else ""
            raise UsageError(f"--dashboard makes the token of the live page: give --state DIR{others}")
        _make_page_token(state, out_file, person(by))
        return
    if host and (state is None or ca is not None or revoke):
        raise UsageError(
            "--host is for the certificate of --state DIR: leave out --tokens, --ca and --revoke"
        )
    if site is None:
        if state is None or not host or _given(of_site):
            raise UsageError("give SITE, or --state DIR with --dashboard or with --host NAME alone")
        _certify(state, host)
        return
    path = tokens or Path(state or "") / TOKENS
    if revoke:
        if keep:
            raise UsageError("--revoke ends all of a site's tokens, and --keep leaves one: give one of them")
        if extra := _given(of_token):
            option = extra[0]
            raise UsageError(f"{option} {of_token[option]} is for a site with a token: give --revoke alone")
        store.revoke(path, site, person(by))
        out.print(f"{site} has no token any more", markup=False)
        return
    allowed = None if samples is None else _sample_range(samples)
    of_kit = _given({"--address": address, "--ca": ca, "--cert": certificate, "--key": key})
    if of_kit and out_file is None:
        raise UsageError(f"{', '.join(of_kit)} is for a kit: give --out FILE too")
    kit, token_out = (out_file, None) if of_kit else (None, out_file)
    life = life_of("--expires", expires or (KIT_LIFE if kit is not None else "never"))
    own = site_pair(site, certificate, key)
    if kit is not None:
        check_kit(kit, state, address, ca, host or ())

    def write(token: str) -> None:
        if kit is not None:
            write_site_kit(kit, token, life, state, str(address), ca, own)
        elif token_out is not None:
            write_token(token_out, token)

    with new_secret("--out", out_file):
        _directory_of_tokens(path.parent, private=tokens is None)
        if state is not None and (host or (kit is not None and ca is None)):
            _certify(state, host or (), address)
        token = store.make_token(
            path, site, keep=keep, samples=allowed, life=life, hand_over=write, by=person(by)
        )
    if kit is not None:
        _tell_of_kit(kit)
    elif token_out is not None:
        line = f"{token_out}: the token of site {site}; {_HAND_ON}: --set access.token_file=FILE"
        out.print(line, markup=False, soft_wrap=True)
    else:
        print(token)  # noqa: T201


def _given(options: Mapping[str, object]) -> list[str]:
    """The options that have a value."""
    return [option for option, value in options.items() if value]


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


def _certify(state: Path, hosts: Sequence[str], address: str | None = None) -> None:
    """Make a directory's own authority and certificate if it has none, or another certificate for hosts.

    Args:
        state: The state directory.
        hosts: Names of the server. None given leaves a certificate that is there as it is.
        address: The server's address in a kit, whose host the certificate is for too.
    """
    with requires_extra("net"):
        from offbeat.net.address import split
        from offbeat.net.auth.ca import OwnAuthority

    authority = OwnAuthority(state)
    if authority.exists and not hosts:
        return
    authority.issue([*hosts, *([] if address is None else [split(address)[0]])])
    names = f"{authority.certificate} is for {', '.join(authority.names)}, until {authority.expires:%Y-%m-%d}"
    for line in (names, f"fingerprint of its authority: {authority.fingerprint}"):
        # The other stream has the token.
        err.print(line, markup=False, soft_wrap=True)


def check_kit(
    kit: Path, state: Path | None, address: str | None, ca: Path | None, hosts: Sequence[str] = ()
) -> None:
    """Check what a kit needs, before the site's old token ends.

    Args:
        kit: The file.
        state: The server's state directory. None means that there is none.
        address: Where the site finds the server.
        ca: Who signs the server's certificate. None means the directory's own authority.
        hosts: Names for which the directory's certificate is made again, beside the address's.

    Raises:
        UsageError: There is no address, the certificate is not for it, or `ca` is no authority.
    """
    with requires_extra("net"):
        from offbeat.net.address import split
        from offbeat.net.auth.ca import OwnAuthority, covers
        from offbeat.net.auth.credentials import pem
        from offbeat.net.kit import authorities_in

    if address is None or split(address)[1] == 0:
        raise UsageError(
            f"--out {kit} needs --address HOST:PORT, by which the site finds the server, such as "
            "fl.example.org:7117"
        )
    own = None if state is None else OwnAuthority(state)
    if ca is not None:
        text = pem(ca).decode("utf-8", "replace")
        try:
            authorities_in(text)
        except UsageError as error:
            raise UsageError(f"--ca {ca}: {error}") from None
    elif own is not None and own.exists and not hosts and not covers(own.names, split(address)[0]):
        raise UsageError(
            f"--address {address}: the server's certificate is for {', '.join(own.names)}; give one of them, "
            f"or make another for all of its names: --host {split(address)[0]} --host …"
        )


def site_pair(site: str, certificate: Path | None, key: Path | None) -> tuple[str, str] | None:
    """A site's own certificate and key, as texts for its kit; None where neither is given.

    Raises:
        UsageError: One is missing, or they are not of each other, or not of the site.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError("--cert and --key belong together: give both, or neither")
    with requires_extra("net"):
        from offbeat.net.auth.certificates import SITE, check_pair, check_usage, names_in
        from offbeat.net.auth.credentials import pem

    texts = pem(certificate), pem(key)
    check_usage(f"--cert {certificate}", texts[0], SITE)
    check_pair(f"--cert {certificate}", texts[0], f"--key {key}", texts[1])
    if (names := names_in(texts[0])) != (site,):
        named = ", ".join(names) or "nobody"
        raise UsageError(
            f"--cert {certificate} names {named}, and the site is {site}: have one signed for it"
        )
    return texts[0].decode(), texts[1].decode()


def _tell_of_kit(file: Path) -> None:
    """Say what to do with a site's kit."""
    from offbeat.net.kit import KitFile

    made = KitFile(file).read()
    lines = [f"{file}: site {made.name} of the server at {made.address}; its token ends: {made.ends}"]
    if made.fingerprint is not None:
        lines.append(f"fingerprint of the server's authority: {made.fingerprint}")
    lines.append(f"{_HAND_ON}: offbeat join {file.name} …")
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)


def write_site_kit(
    kit: Path,
    token: str,
    life: int,
    state: Path | None,
    address: str,
    ca: Path | None = None,
    own: tuple[str, str] | None = None,
) -> None:
    """Write a site's kit, with the server's own authority where there is no other one.

    Args:
        kit: The file.
        token: The site's token.
        life: Seconds that the token lives. 0 means for ever.
        state: The server's state directory. None means that there is none.
        address: Where the site finds the server.
        ca: Who signs the server's certificate. None means the directory's own authority, if there is one.
        own: The site's certificate and key. None means none.
    """
    from offbeat.cli.kit import policy_template
    from offbeat.net.auth.ca import OwnAuthority
    from offbeat.net.auth.credentials import pem
    from offbeat.net.kit import make_kit, write_kit
    from offbeat.version import __version__

    authority = None if state is None else OwnAuthority(state)
    signer = ca or (authority.ca if authority is not None and authority.exists else None)
    text = None if signer is None else pem(signer).decode()
    made = make_kit(
        address, token, time.time() + life if life else None, text, policy_template(), __version__, own
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


def _make_page_token(state: Path, token_out: Path | None, by: str) -> None:
    """Make the token of a run's live page and print it; the previous token is no longer valid."""
    from offbeat.net.auth.tokens import DASHBOARD, make_token

    path = state / PAGE_TOKEN
    with new_secret("--out", token_out):
        _directory_of_tokens(state, private=True)
        write = None if token_out is None else partial(write_token, token_out)
        token = make_token(path, DASHBOARD, hand_over=write, by=by)
    if token_out is None:
        print(token)  # noqa: T201
    else:
        out.print(f"{token_out}: the token of the live page", markup=False, soft_wrap=True)


def read_token(file: Path, option: str = "--token-file") -> str:
    """The token of an option's file. Raises `UsageError` if it cannot be read."""
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {file} cannot be read: {reason_of(error)}") from None
