"""How stable each command is, as its help says; docs/releases.md says what the labels promise."""

from enum import StrEnum


class Stability(StrEnum):
    """What a user may expect of later releases; the value is what the help says."""

    STABLE = "stable"
    PROVISIONAL = "provisional; it may change in any release"
    EXPERIMENTAL = "experimental, not reviewed; no cryptographer has looked at it"


_NOT_STABLE = {
    "federate": Stability.PROVISIONAL,
    "new": Stability.PROVISIONAL,
    "simulate-like": Stability.PROVISIONAL,
    "audit": Stability.PROVISIONAL,
    "backup": Stability.PROVISIONAL,
    "restore": Stability.PROVISIONAL,
    "reproduce": Stability.PROVISIONAL,
    "helper": Stability.EXPERIMENTAL,
}


def stability_of(command: str) -> Stability:
    """The stability of a command."""
    return _NOT_STABLE.get(command, Stability.STABLE)
