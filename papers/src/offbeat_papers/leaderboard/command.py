"""The command line of what tunes methods, and writes studies into the checkout."""

import argparse
from collections.abc import Collection, Sequence

from offbeat_papers.measure import checkout


def parse_command(
    text: str | None, what: str, known: Collection[str], words: Sequence[str] | None = None
) -> tuple[list[str], int]:
    """Read the names that are given and the number of runs at the same time; exit with 2 if one is wrong.

    Args:
        text: What the command does.
        what: What the names are of, such as "papers".
        known: The names that there are.
        words: The command's arguments. None means those of the process.

    Returns:
        The names, all if none is given; and the number of runs.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar=what, help=f"default: {', '.join(known)}")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    given = parser.parse_args(words)
    for name in given.names:
        if name not in known:
            parser.error(f"{what} {name} is unknown: known are {', '.join(known)}")
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs} is not allowed: should be at least 1")
    if checkout() is None:
        parser.error(
            "studies are written into a checkout: install both packages from one, with pip install -e"
        )
    return given.names or list(known), given.jobs
