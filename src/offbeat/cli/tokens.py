"""The commands that make and revoke tokens, of sites and of the live page."""

from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.console import out
from offbeat.cli.options import StateDirectory, file_option
from offbeat.cli.state_dir import PAGE_TOKEN, TOKENS, make_directory
from offbeat.core.errors import UsageError


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
    revoke: Annotated[bool, typer.Option("--revoke", help="revoke the site's tokens instead")] = False,
) -> None:
    """Make a token for a site and print it; only its hash is stored."""
    from offbeat.net.auth import tokens as store

    if (state is None) == (tokens is None):
        raise UsageError("give --state DIR or --tokens FILE: one of them")
    if revoke and keep:
        raise UsageError("--revoke ends all of a site's tokens, and --keep leaves one: give one of them")
    allowed = None if samples is None else _sample_range(samples)
    if revoke and allowed:
        raise UsageError(f"--samples {samples} is for a site with a token: give --revoke alone")
    path = tokens or Path(state or "") / TOKENS
    if revoke:
        store.revoke(path, site)
        out.print(f"{site} has no token any more", markup=False)
    else:
        make_directory(path.parent, private=tokens is None)
        print(store.enrol(path, site, keep=keep, samples=allowed))  # noqa: T201


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
        raise UsageError(f"--token-file {file} cannot be read: {error}") from None
