"""The command line `offbeat`.

Exit codes: 0 done, 1 a run failed, 2 wrong usage, 130 interrupted.

This module itself imports next to nothing, so that interruptions are handled before what takes long is
imported.
"""

import os
import sys
from types import FrameType

from offbeat.signals import handled, interrupts

INTERRUPTED = 130
_IMPORTS = "<frozen importlib._bootstrap>"
_GOES_ON = {
    "join": "; the same command takes part again",
    "helper": "; the same command helps again",
}


def main() -> None:
    """Run the command line; every expected error is one line on stderr."""
    with handled(_interrupt, *interrupts()):
        from offbeat.cli.commands import run

        run()


def interruption() -> str:
    """The line about a command that was interrupted."""
    return f"interrupted{_GOES_ON.get(''.join(sys.argv[1:2]), '')}"


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`, but end the process at once where it imports a module.

    The compiled code of PyTorch aborts on an exception in its import, and other packages hide it in an error
    of their own. Where a command has something to finish, it handles the signals in its own way.
    """
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS:
            os.write(2, f"offbeat: {interruption()}\n".encode())
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt
