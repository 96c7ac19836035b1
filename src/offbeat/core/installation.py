"""The command that installs Offbeat, for messages and pages.

Until the first release no package index has Offbeat, and anyone could register its name there. So every
command installs from a checkout, or from the file of a wheel. `ON_INDEX` changes messages at once;
`scripts/install_lines.py` then writes the commands of the pages again.
"""

ON_INDEX = False
"""Whether a package index has the distributions `offbeat` and `offbeat-papers` of this project."""


def install_command(*extras: str, on_index: bool = ON_INDEX) -> str:
    """The command that installs Offbeat.

    Args:
        extras: Extras of Offbeat, such as "net". "papers" alone stands for the distribution of the papers,
            which requires Offbeat of its own version.
        on_index: Whether the distributions come from a package index. False means from a checkout.
    """
    if extras == ("papers",):
        return "pip install offbeat-papers" if on_index else "pip install -e . -e ./papers"
    named = f"[{','.join(extras)}]" if extras else ""
    if on_index:
        return f'pip install "offbeat{named}"'
    return f'pip install -e ".{named}"' if named else "pip install -e ."


def install_hint(*extras: str, on_index: bool = ON_INDEX) -> str:
    """The command, and where it works, as the end of a message."""
    command = install_command(*extras, on_index=on_index)
    if on_index:
        return command
    wheel = "WHEEL PAPERS_WHEEL" if extras == ("papers",) else f'"WHEEL[{",".join(extras)}]"'
    return f"{command} in a checkout of Offbeat, or pip install {wheel} with the file of its wheel"


def papers_install_command(extra: str, on_index: bool = ON_INDEX) -> str:
    """The command that adds an extra to an installed `offbeat-papers`."""
    return f'pip install "offbeat-papers[{extra}]"' if on_index else f'pip install -e "./papers[{extra}]"'
